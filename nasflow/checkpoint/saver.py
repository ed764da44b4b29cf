"""Save the checkpoints of several trials together, many in one file."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nasflow.checkpoint.bundle import Bundle, Snapshot
from nasflow.checkpoint.store import CheckpointStore
from nasflow.system.gc_control import uncollected

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """A request to save one trial.

    Attributes:
        store: the trial's store.
        epoch: the number of epochs it has finished.
        state: returns the state, as `packing.pack` takes it; repeated calls return the same.
        ranking: epochs, the best first; the best one that has a checkpoint is kept permanently.
    """

    store: CheckpointStore
    epoch: int
    state: Callable[[], dict[str, Any]]
    ranking: Sequence[int] = ()


class Place(NamedTuple):
    """The destination of a trial's state; attributes as in `Save`."""

    store: CheckpointStore
    epoch: int
    ranking: Sequence[int]


@dataclass(frozen=True, eq=False)
class Taken:
    """The copied states that go into one file.

    Attributes:
        places: the places of these states, by position.
    """

    snapshot: Snapshot
    places: Mapping[int, Place]

    def only(self, position: int) -> "Taken":
        """Return the part that belongs to the trial at a position."""
        place = self.places[position]
        return Taken(self.snapshot.only(place.store.trial), {position: place})


class JointSaver:
    """Saves many trials in about the time of a few, by writing and syncing their states in one file.

    The file has a hard link in the folder of each of its trials. So each trial keeps and drops its checkpoints
    independently, and the file is deleted with its last link. On file systems without hard links, each trial has its
    own files.
    """

    def __init__(self) -> None:
        self._links = True

    def save(self, saves: Sequence[Save]) -> dict[int, BaseException]:
        """Save all that can be saved. Return the errors of the others, by position."""
        parts, failed = self.take(saves)
        for part in parts:
            failed |= self.write(part)
        return failed

    @uncollected()
    def take(self, saves: Sequence[Save]) -> tuple[list[Taken], dict[int, BaseException]]:
        """Copy the states, so that training can continue while they are written.

        Returns:
            One part per file, and the errors of trials without an available state, by position.
        """
        parts: list[Taken] = []
        failed: dict[int, BaseException] = {}
        bundle, inside = Bundle(), dict[int, Save]()
        for position, save in enumerate(saves):
            try:
                bundle.add(save.store.trial, save.epoch, save.state())
            except (Exception, SystemExit) as error:  # an error in a state counts against its trial only
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
                alone.add(save.store.trial, save.epoch, save.state())
            except (Exception, SystemExit) as error:
                failed[position] = error
                continue
            parts += self._freeze(alone, {position: save}, failed)
        return parts

    def write(self, part: Taken) -> dict[int, BaseException]:
        """Write a part to disk. Return the errors of trials that were not saved, by position."""
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
                logger.info("checkpoint of trial %s gets a separate file: %s", other.store.trial, error)
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
