"""Checkpoints of several trials at once, in a file for many of them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nasflow.training.bundle import Bundle
from nasflow.training.checkpoint import CheckpointStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """What is to be saved of a trial.

    Attributes:
        store: of the trial.
        epoch: epochs it has finished.
        state: gives what `packing.pack` takes, the same if called again.
    """

    store: CheckpointStore
    epoch: int
    state: Callable[[], dict[str, Any]]


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
                failed |= self._write(bundle, inside)
                bundle, inside = Bundle(), {}
        return failed | self._write(bundle, inside) if inside else failed

    def _write(self, bundle: Bundle, saves: Mapping[int, Save]) -> dict[int, BaseException]:
        first, *others = saves
        try:
            file = saves[first].store.write(saves[first].epoch, bundle)
        except Exception as error:
            if not others:
                return {first: error}
            logger.warning("%d checkpoints can't be saved together", len(saves), exc_info=error)
            return self._apart(saves)
        unlinked: dict[int, Save] = {}
        for position in others:
            try:
                saves[position].store.link(saves[position].epoch, file)
            except OSError as error:
                unlinked[position] = saves[position]
                logger.info("checkpoint of trial %s gets a file of its own: %s", saves[position].store.trial, error)
        if others and len(unlinked) == len(others):
            self._links = False
        return self._apart(unlinked)

    @staticmethod
    def _apart(saves: Mapping[int, Save]) -> dict[int, BaseException]:
        failed: dict[int, BaseException] = {}
        for position, save in saves.items():
            try:
                save.store.save(save.epoch, save.state())
            except (Exception, SystemExit) as error:
                failed[position] = error
        return failed
