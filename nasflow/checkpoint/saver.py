"""Checkpoints of several trials at once, in a file for many of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nasflow.checkpoint.bundle import Bundle, Snapshot
from nasflow.checkpoint.store import CheckpointStore
from nasflow.gc_control import uncollected

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """What is to be saved of a trial.

    Attributes:
        store: of the trial.
        epoch: epochs it has finished.
        state: gives what `packing.pack` takes, the same if called again.
        ranking: epochs, the best first; of those that are saved the best stays for good.
    """

    store: CheckpointStore
    epoch: int
    state: Callable[[], dict[str, Any]]
    ranking: Sequence[int] = ()


class Place(NamedTuple):
    """Where a trial's state goes; as of `Save`."""

    store: CheckpointStore
    epoch: int
    ranking: Sequence[int]


@dataclass(frozen=True, eq=False)
class Taken:
    """What is to be written to one file.

    Attributes:
        places: by position, of those whose states it holds.
    """

    snapshot: Snapshot
    places: Mapping[int, Place]

    def only(self, position: int) -> "Taken":
        """What is a trial's own."""
        place = self.places[position]
        return Taken(self.snapshot.only(place.store.trial), {position: place})


class JointSaver:
    """Saves many trials in the time of few: their states are written and synced in one file.

    The file has a name in the folder of each of its trials, as a hard link, so a trial keeps and drops its checkpoints
    without a look at the others, and the file is gone with the last of its names. Where there are no hard links, each
    trial has files of its own.
    """

    def __init__(self) -> None:
        self._links = True

    def save(self, saves: Sequence[Save]) -> dict[int, BaseException]:
        """Save all. What was raised for those that can't be saved, by position; the others are."""
        parts, failed = self.take(saves)
        for part in parts:
            failed |= self.write(part)
        return failed

    @uncollected()
    def take(self, saves: Sequence[Save]) -> tuple[list[Taken], dict[int, BaseException]]:
        """Copy the states, so that training can go on while they are written: a part for each file.

        Returns:
            The parts, and what was raised for those whose state can't be had, by position.
        """
        parts: list[Taken] = []
        failed: dict[int, BaseException] = {}
        bundle, inside = Bundle(), dict[int, Save]()
        for position, save in enumerate(saves):
            try:
                bundle.add(save.store.trial, save.state())
            except (Exception, SystemExit) as error:  # whatever a state does is its own failure
                failed[position] = error
                continue
            inside[position] = save
            if bundle.is_full or not self._links:
                parts += self._freeze(bundle, inside, failed)
                bundle, inside = Bundle(), {}
        if inside:
            parts += self._freeze(bundle, inside, failed)
        return parts, failed

    def _freeze(self, bundle: Bundle, saves: dict[int, Save], failed: dict[int, BaseException]) -> list[Taken]:
        try:
            places = {position: Place(save.store, save.epoch, save.ranking) for position, save in saves.items()}
            return [Taken(bundle.freeze(), places)]
        except Exception as error:
            if len(saves) == 1:
                failed[next(iter(saves))] = error
                return []
        parts = []
        for position, save in saves.items():
            alone = Bundle()
            try:
                alone.add(save.store.trial, save.state())
            except (Exception, SystemExit) as error:
                failed[position] = error
                continue
            parts += self._freeze(alone, {position: save}, failed)
        return parts

    def write(self, part: Taken) -> dict[int, BaseException]:
        """Write a part to the disk. What was raised for those that are not there now, by position."""
        first, *others = part.places
        place = part.places[first]
        try:
            file = place.store.write(place.epoch, part.snapshot, place.ranking)
        except Exception as error:
            if not others:
                return {first: error}
            logger.info("%d checkpoints can't be saved together: %s", len(part.places), error)
            return self._write_apart(part, part.places)
        unlinked: dict[int, Place] = {}
        for position in others:
            other = part.places[position]
            try:
                other.store.link(other.epoch, file, other.ranking)
            except OSError as error:
                unlinked[position] = other
                logger.info("checkpoint of trial %s gets a file of its own: %s", other.store.trial, error)
        if others and len(unlinked) == len(others):
            self._links = False
        place.store.sync()
        return self._write_apart(part, unlinked)

    @staticmethod
    def _write_apart(part: Taken, places: Mapping[int, Place]) -> dict[int, BaseException]:
        failed: dict[int, BaseException] = {}
        for position, place in places.items():
            try:
                place.store.write(place.epoch, part.snapshot.only(place.store.trial), place.ranking)
                place.store.sync()
            except Exception as error:
                failed[position] = error
        return failed
