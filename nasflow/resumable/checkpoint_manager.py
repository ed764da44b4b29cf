"""Which parts of a job's state are saved, when, and for how long. After Caffe2's CheckpointManager."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nasflow.checkpoint.background import Background
from nasflow.checkpoint.bundle import Bundle, Snapshot
from nasflow.checkpoint.store import CheckpointStore, retained
from nasflow.checkpoint.url_store import UrlStore
from nasflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_ALL = 2**31
_SCORES = "$scores"  # in a checkpoint, beside the parts of the state


class Store(Protocol):
    """Storage of the checkpoints of one state, by finished epochs."""

    @property
    def trial(self) -> str:
        """The state's name in files."""

    def write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int] = ()) -> Any:
        """Save a snapshot that contains the state."""

    def load(self, epoch: int) -> dict[str, Any]:
        """Return the state after `epoch`. Raises CheckpointError if there is none, or it is damaged."""

    def epochs(self) -> list[int]:
        """Return the epochs that have a checkpoint, oldest first."""

    def drop(self, epoch: int) -> None:
        """Remove the checkpoint of an epoch."""


def make_store(place: Path | str, keep: int) -> Store:
    """Return a store for a folder or a URL."""
    if isinstance(place, str) and "://" in place:
        return UrlStore(place, keep)
    return CheckpointStore(Path(place), keep)


class CheckpointManager:
    """Saves named parts of a state after init and after epochs, in a background thread.

    A part with `state_dict` and `load_state_dict` is saved and loaded by these methods. Any other is saved as it is
    (numbers, text, tensors, and dicts, lists and tuples of them) and replaced when loaded.

    Args:
        place: a folder, or a URL that fsspec supports; its last part names the state.
        names: the names of the parts.
        keep: how many of the newest checkpoints are kept.
        every_epochs: save after this many epochs,
        every_minutes: or after an epoch that ends this many minutes after the last checkpoint.
        best: returns the score of a state, the lower the better; the best saved state is kept, too. One whose score is
            not finite is not kept for it.
    """

    def __init__(
        self,
        place: Path | str,
        names: Iterable[str],
        *,
        keep: int = 2,
        every_epochs: int = 1,
        every_minutes: float | None = None,
        best: Callable[[Mapping[str, Any]], float] | None = None,
    ):
        self._store = make_store(place, keep)
        self._names = list(names)
        self._every_epochs, self._every_minutes, self._best = every_epochs, every_minutes, best
        self._scores: dict[int, float] = {}
        self._background = Background("checkpoints")
        self._last = time.monotonic()

    def is_due(self, epoch: int) -> bool:
        """Whether to save a checkpoint after this many epochs."""
        late = self._every_minutes is not None and time.monotonic() - self._last >= 60 * self._every_minutes
        return late or epoch % self._every_epochs == 0

    def save(self, state: Mapping[str, Any], epoch: int) -> None:
        """Copy the parts now, and write them in the background, after waiting for the previous checkpoint.

        Raises:
            CheckpointError: a part can't be saved.
            OSError: the previous checkpoint could not be written.
        """
        self._background.wait()
        bundle, ranking = Bundle(), self._ranking(state, epoch)
        scores = {} if self._best is None else {_SCORES: self._scores}
        bundle.add(self._store.trial, epoch, {name: _taken(state[name]) for name in self._names} | scores)
        snapshot = bundle.freeze()
        self._last = time.monotonic()
        self._background.do(lambda: self._write(epoch, snapshot, ranking))

    def load(self, state: dict[str, Any], epoch: int | None = None) -> int | None:
        """Put the parts of an epoch, by default the newest undamaged one, into `state`. Remove later epochs.

        Returns:
            The epoch; None if there is no checkpoint.

        Raises:
            CheckpointError: that epoch has none, or all are damaged.
            NewerCheckpointError: a newer nasflow has written it.
            OSError, MemoryError, or what else a storage raises: it can't be read at present. Nothing is removed.
        """
        self._background.wait()
        epochs = self.epochs() if epoch is None else [epoch]
        for one in reversed(epochs):
            try:
                saved = self._store.load(one)
            except CheckpointError as error:
                if one == epochs[0]:
                    raise
                logger.warning("the epoch before %d is loaded, because %s", one, error)
                continue
            for name in self._names:
                _put(state, name, saved[name])
            self._scores = dict(saved.get(_SCORES, {}))
            for newer in [other for other in self._store.epochs() if other > one]:
                self._store.drop(newer)  # these will be saved again, or are damaged
            return one
        return None

    def epochs(self) -> list[int]:
        """Return the epochs that can be loaded, oldest first."""
        return self._store.epochs()

    def wait(self) -> None:
        """Wait until everything saved is written. Raises the error if writing failed."""
        self._background.wait()

    def close(self) -> None:
        """Wait as `wait` does, then end the thread."""
        try:
            self.wait()
        finally:
            self._background.close()

    def _write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int]) -> None:
        self._store.write(epoch, snapshot, ranking)
        self._forget_scores()

    def _forget_scores(self) -> None:
        """Keep the scores of states that are still there only, because every checkpoint has them."""
        if self._best is not None:
            there = self._store.epochs()
            self._scores = {epoch: score for epoch, score in self._scores.items() if epoch in there}

    def _ranking(self, state: Mapping[str, Any], epoch: int) -> list[int]:
        if self._best is None:
            return []
        score = float(self._best(state))
        if math.isfinite(score):
            self._scores[epoch] = score
        return sorted(self._scores, key=self._scores.__getitem__)


class MultiNodeCheckpointManager(CheckpointManager):
    """A manager for one node of a multi-node job, after Caffe2's class of the same name.

    An epoch is complete once every node has saved it. Every node has its own folder below `place`, which all nodes can
    read. A node drops an epoch only when there are newer complete ones. `load` takes the newest complete epoch that can
    be read from every node's folder, so all nodes resume from the same epoch if none saves meanwhile.

    Args:
        place: a folder, or a URL that fsspec supports.
        node: the name of this node.
        nodes: the names of all nodes.
        names: as in `CheckpointManager`, like the other arguments.
    """

    def __init__(
        self, place: Path | str, names: Iterable[str], *, node: str, nodes: Sequence[str], keep: int = 2, **when: Any
    ):
        if node not in nodes:
            raise ValueError(f"node '{node}' is none of the nodes {list(nodes)}")
        super().__init__(_below(place, node), names, keep=_ALL, **when)
        self._stores = {name: make_store(_below(place, name), _ALL) for name in nodes}
        self._keep = keep

    def epochs(self) -> list[int]:
        """Return the epochs that every node has saved, oldest first."""
        first, *others = [set(store.epochs()) for store in self._stores.values()]
        return sorted(first.intersection(*others))

    def load(self, state: dict[str, Any], epoch: int | None = None) -> int | None:
        """Load as `CheckpointManager.load` does, from an epoch that every node can read."""
        self.wait()
        epochs = self.epochs() if epoch is None else [epoch]
        whole = next((one for one in reversed(epochs) if self._is_whole(one)), None)
        if whole is None and epochs:
            raise CheckpointError(f"no epoch of {epochs} can be read on all of the nodes {list(self._stores)}")
        return None if whole is None else super().load(state, whole)

    def _is_whole(self, epoch: int) -> bool:
        try:
            for store in self._stores.values():
                store.load(epoch)
        except CheckpointError as error:
            logger.warning("epoch %d is passed over, because %s", epoch, error)
            return False
        return True

    def _write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int]) -> None:
        self._store.write(epoch, snapshot)
        counting = self.epochs()
        stay = retained(counting, self._keep, ranking)
        for old in self._store.epochs():
            if stay and old < max(counting) and old not in stay:
                self._store.drop(old)
        self._forget_scores()


def _below(place: Path | str, name: str) -> Path | str:
    return f"{place.rstrip('/')}/{name}" if isinstance(place, str) and "://" in place else Path(place) / name


def _taken(part: Any) -> Any:
    return dict(part.state_dict()) if hasattr(part, "state_dict") else part


def _put(state: dict[str, Any], name: str, saved: Any) -> None:
    if hasattr(state.get(name), "load_state_dict"):
        state[name].load_state_dict(saved)
    else:
        state[name] = saved
