"""The checkpoints of a job's members: written in the background, and reported once they are on disk."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nasflow.checkpoint.background import Background
from nasflow.checkpoint.bundle import NewerCheckpointError, Snapshot
from nasflow.checkpoint.far_copies import Copy, FarCopies
from nasflow.checkpoint.interval import Interval
from nasflow.checkpoint.names import WITHIN
from nasflow.checkpoint.saver import JointSaver, Place, Save, Taken
from nasflow.checkpoint.store import CheckpointStore
from nasflow.checkpoint.url_store import UrlStore
from nasflow.config.durations import duration_text
from nasflow.config.search import Objective
from nasflow.config.secret.secret_url import hide_passwords
from nasflow.config.secret.secrets import reveal
from nasflow.errors import CheckpointError, InfrastructureError
from nasflow.job import activity, disk_full
from nasflow.job.events import Alert, Event, Final
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.reporting import Reported, events_of
from nasflow.training.member.trained import trained_state
from nasflow.training.repeated import RepeatedTrial

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Reported)
T = TypeVar("T")

_PAUSES = (1.0, 5.0)  # seconds
_AT_CLOSE = 5.0  # seconds that a job which ends before its time waits for its copies at a URL


@dataclass(frozen=True, eq=False)
class _Unsaved:
    """The last checkpoint of a trial, for which the disk had no room, and the event to report once it is saved."""

    part: Taken
    final: Final


class MemberCheckpoints:
    """Saves members while training goes on, and reports each epoch once it is saved.

    If members can't be saved, for example because the disk is full, training goes on without checkpoints; only the end
    of a trial is not reported until its weights are safe. If the config names a URL, checkpoints are copied there too,
    without waiting for it, and loaded from there if they are newer.

    Args:
        tell: reports an event at once; `tell_later` after those of the checkpoints on their way. Called in this order:
            the epochs of a member, one by one, then its end.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Callable[[Event], None]):
        self._config, self._root, self.tell = spec.checkpoint, root, tell
        self._place = spec.copies or spec.study
        self._generation = spec.generation
        self._url = ""
        self._saver = JointSaver()
        self._background = Background("checkpoints")
        self._stores: dict[int, CheckpointStore] = {}
        self._within: dict[int, CheckpointStore] = {}
        self._begun: set[int] = set()  # trials that go on from a state within an epoch
        self._last_saves: dict[int, float] = {}
        auto = self._config.every_epochs == "auto"
        self._interval = Interval(self._config.between_failures) if auto else None
        self._said = 0.0  # the interval in the log, in seconds
        self._unsaved: list[_Unsaved] = []
        self._troubles: set[str] = set()
        self._noting = threading.Lock()
        copying = partial(self._note, f"checkpoints can't be copied to {self._config.url}")
        self._far = None if self._config.url is None else FarCopies(self._far_store, copying)

    def newest(self, trial: int) -> dict[str, Any] | None:
        """Return a trial's newest state; None for a new trial, or if all its checkpoints are damaged.

        Raises:
            InfrastructureError: another controller's job has replaced this one, or its checkpoints can't be read at
                present, or not by this version.
        """
        with _blaming_no_trial(trial):
            return self._newest(trial)

    def ended(self, trial: int) -> dict[str, Any]:
        """Return the last state of a trial that has ended, for a job that trains nothing.

        Raises:
            InfrastructureError: there is none that can be read.
        """
        with _blaming_no_trial(trial):
            self._bring(trial, self._store(trial))
            try:
                return trained_state(trial_dir(self._root, trial))
            except CheckpointError as error:
                raise InfrastructureError(f"trial {trial} can't be tested: {error}") from error

    def _newest(self, trial: int) -> dict[str, Any] | None:
        here = self._store(trial)
        within = self._store_within(trial)
        last = max(filter(None, (here.newest(), within.newest())), default=None)
        if last is not None and last.generation > self._generation:
            raise InfrastructureError(
                f"trial {trial} has checkpoints of a later controller's job, which has replaced this one; if the study "
                "has no other controller, run the search again"
            )
        self._bring(trial, here)
        try:
            state = here.load_newest()
        except CheckpointError as error:
            logger.warning("trial %s starts again, because none of its checkpoints can be read: %s", trial, error)
            here.clear()
            within.clear()
            return None
        if state is not None:  # a job killed after its last save may not have dropped the older ones
            here.retain(state["epoch"], _ranking(self._config.best, state["history"]))
        later = _later(state, within)
        if later is not state:
            self._begun.add(trial)
        return later

    def _bring(self, trial: int, here: CheckpointStore) -> None:
        """Fetch the newest checkpoint from the URL, if that is newer."""
        if self._far is None:
            return
        error: Exception | None = None
        try:
            far = self._far_store(trial)
            newest = far.newest()
            if newest is not None and newest > (here.newest() or (0, -1)):
                state = _patiently(far.load_newest)
                if state is not None:
                    here.save(state["epoch"], state)
        except Exception as raised:  # a storage may raise anything
            error = raised
        self._note(f"checkpoints can't be read from {self._config.url}", error)

    def knows(self, trial: int) -> bool:
        """Whether a trial has ever been saved here."""
        return bool(self._store(trial).epochs())

    def save(
        self,
        members: Sequence[M],
        failed: Callable[[M, BaseException], None],
        events: Callable[[M], list[Event]] = events_of,
    ) -> None:
        """Copy the states that are due; they are written, and their epochs reported, while training goes on.

        Args:
            failed: called with a member and the error if its state can't be copied.
            events: returns what is reported of a member once it is saved.
        """
        if not members:
            return
        began, saved, going = time.perf_counter(), 0, sum(member.finished_epochs > 0 for member in members)
        is_over = bool(going) and self._interval is not None and self._interval.is_over(time.monotonic(), going)
        self._background.wait()  # at most one epoch is being written
        ended = [member for member in members if member.finished]
        going_on = [member for member in members if not member.finished]
        # apart: files of ended members are kept, and with them all their content
        for some in (ended, going_on):
            due = [member for member in some if self._is_due(member, is_over)]
            parts, errors = self._saver.take([self._as_save(member) for member in due])
            for position, error in errors.items():
                failed(due[position], error)
            lost = {due[position] for position in errors}
            by_trial = {member.number: events(member) for member in some if member not in lost}
            self._background.do(partial(self._commit, parts, [member.number for member in due], by_trial))
            saved += sum(len(part.places) for part in parts)
        if self._interval is not None and saved:
            self._interval.copied(time.perf_counter() - began, saved)
            self._interval.begin(time.monotonic(), again=is_over)
        if self._interval is not None and going:
            self._say(self._interval, going)

    def save_within(self, members: Sequence[Member | RepeatedTrial], batches: int) -> bool:
        """Save members within an epoch, of which they have trained on so many batches. Return whether all are saved."""
        saves = [
            Save(self._store_within(member.number), member.finished_epochs, partial(_state_within, member, batches))
            for member in members
        ]
        errors = self._saver.save(saves)
        for position, error in errors.items():
            logger.error("trial %s can't be saved within its epoch: %s", members[position].number, error)
        if errors:
            self.drop_within([member.number for member in members])
        return not errors

    def drop_within(self, trials: Sequence[int]) -> None:
        """Remove the states of trials within an epoch."""
        for trial in trials:
            self._store_within(trial).clear()
            self._begun.discard(trial)

    def tell_later(self, event: Event) -> None:
        """Report an event after everything that is being saved."""
        self._background.do(lambda: self.tell(event))

    def wait(self) -> None:
        """Wait until all copied states are written, if they can be."""
        self._background.wait()

    def finish(self) -> None:
        """As `wait`, and also wait for room on the disk for the last checkpoints of trials that have ended.

        Then wait until everything is copied to the URL, unless that fails or does not answer.

        Raises:
            InfrastructureError: the disk stayed full.
        """
        self.wait()
        deadline = time.monotonic() + disk_full.SECONDS
        while self._unsaved:
            errors = [self._saver.write(unsaved.part) for unsaved in self._unsaved]
            left = [(unsaved, error) for unsaved, error in zip(self._unsaved, errors, strict=True) if error]
            for unsaved in self._unsaved:
                if all(unsaved is not other for other, _ in left):
                    self.tell(unsaved.final)
            self._unsaved = [unsaved for unsaved, _ in left]
            if left and time.monotonic() > deadline:
                trials = [unsaved.final.trial for unsaved in self._unsaved]
                raise InfrastructureError(
                    f"the last checkpoints of trials {trials} can't be saved in {trial_dir(self._root, trials[0])}: "
                    f"{next(iter(left[0][1].values()))}; make room there and start again"
                )
            if left:
                time.sleep(disk_full.POLL)
                activity.excuse(disk_full.POLL)
        if self._far is not None:
            self._far.finish(waited=activity.excuse)

    def close(self) -> None:
        """End the threads."""
        self._background.close()
        if self._far is not None:
            self._far.finish(_AT_CLOSE)

    def _store(self, trial: int) -> CheckpointStore:
        if trial not in self._stores:
            self._stores[trial] = CheckpointStore(trial_dir(self._root, trial), self._config.keep, self._generation)
        return self._stores[trial]

    def _store_within(self, trial: int) -> CheckpointStore:
        if trial not in self._within:
            self._within[trial] = CheckpointStore(trial_dir(self._root, trial), 1, self._generation, WITHIN)
        return self._within[trial]

    def _far_store(self, trial: int) -> UrlStore:
        if self._config.url is None:
            raise RuntimeError("checkpoint.url is not set")
        self._url = reveal(self._config.url, "checkpoint.url")
        name = trial_dir(Path(), trial).as_posix()
        return UrlStore(f"{self._url.rstrip('/')}/{self._place}/{name}", self._config.keep, self._generation)

    def _say(self, interval: Interval, states: int) -> None:
        """Put the interval in the log, at first and when it has become another."""
        seconds = interval.seconds(states)
        if not self._said or not 0.5 < seconds / self._said < 2:
            self._said = seconds
            logger.warning(
                "checkpoint.every_epochs auto: a checkpoint of %s trials costs %.3g s, so with %s between failures the "
                "next is that of the first epoch that ends after %.3g s",
                states,
                interval.cost(states),
                duration_text(self._config.between_failures),
                seconds,
            )

    def _is_due(self, member: Reported, is_over: bool) -> bool:
        epoch, now, every = member.finished_epochs, time.monotonic(), self._config.every_epochs
        last = self._last_saves.setdefault(member.number, now)
        late = self._config.every_minutes is not None and now - last >= 60 * self._config.every_minutes
        is_over |= epoch == 0 if every == "auto" else epoch % every == 0
        if not (member.finished or late or is_over):
            return False
        self._last_saves[member.number] = now
        return True

    def _as_save(self, member: Reported) -> Save:
        ranking = _ranking(self._config.best, member.history)
        return Save(self._store(member.number), member.finished_epochs, partial(_state, member), ranking)

    def _commit(self, parts: Sequence[Taken], trials: Sequence[int], by_trial: Mapping[int, list[Event]]) -> None:
        """Write the states of `trials`, then report their events."""
        began = time.thread_time()
        for part in parts:
            errors = self._saver.write(part)
            self._note(f"checkpoints can't be saved in {self._root}", next(iter(errors.values()), None))
            for position in errors:
                finals = [event for event in by_trial.get(trials[position], []) if isinstance(event, Final)]
                for final in finals:  # not reported before its weights are safe
                    by_trial[trials[position]].remove(final)
                    self._unsaved.append(_Unsaved(part.only(position), final))
            for position, place in part.places.items():
                self._copy(trials[position], place, part.only(position).snapshot if position in errors else None)
                if trials[position] in self._begun:
                    self.drop_within([trials[position]])
                activity.progress()  # the next epoch may have to wait for this
        if self._interval is not None:
            self._interval.written(time.thread_time() - began)
        for events in by_trial.values():
            for event in events:
                self.tell(event)

    def _copy(self, trial: int, place: Place, unsaved: Snapshot | None) -> None:
        """Have a state copied to the URL: the one in its file, or `unsaved`, which could not be written."""
        if self._far is not None:
            read = partial(place.store.read_snapshot, place.epoch) if unsaved is None else lambda: unsaved
            self._far.put(trial, Copy(place.epoch, read, place.ranking))

    def _note(self, what: str, error: BaseException | None) -> None:
        """Report a problem when it begins."""
        with self._noting:
            begins = error is not None and what not in self._troubles
            (self._troubles.discard if error is None else self._troubles.add)(what)
        if begins:
            text = hide_passwords(f"{what}: {error}; training goes on without", self._url)
            logger.error(text)
            self.tell(Alert(text=text))


def _patiently(load: Callable[[], T]) -> T:
    """Return what `load` returns, after repeating it if the storage, which has answered before, fails now."""
    for pause in _PAUSES:
        try:
            return load()
        except OSError as error:
            logger.warning("a checkpoint at the URL is read again in %g s, because %s", pause, error)
            time.sleep(pause)
    return load()


@contextmanager
def _blaming_no_trial(trial: int) -> Iterator[None]:
    """Raise InfrastructureError for what prevents reading and says nothing about the checkpoints themselves."""
    try:
        yield
    except (OSError, MemoryError, NewerCheckpointError) as error:
        raise InfrastructureError(f"the checkpoints of trial {trial} can't be read at present: {error}") from error


def _later(state: dict[str, Any] | None, within: CheckpointStore) -> dict[str, Any] | None:
    """Return the state within an epoch if there is one that is no older than this one, else this one."""
    try:
        newer = within.load_newest()
    except CheckpointError as error:
        logger.warning("an epoch is trained from its start, because the state within it can't be read: %s", error)
        within.clear()
        return state
    if newer is None or (state is not None and newer["epoch"] < state["epoch"]):
        within.clear()
        return state
    return newer


def _state_within(member: Member | RepeatedTrial, batches: int) -> dict[str, Any]:
    with activity.running(member.number):
        return member.state_within(batches)


def _state(member: Reported) -> dict[str, Any]:
    with activity.running(member.number):  # its modules may have a `state_dict` of their own
        return member.state_to_save()


def _ranking(best: Objective | None, history: Sequence[Mapping[str, float]]) -> list[int]:
    """The epochs by the objective's metric, the best first."""
    if best is None:
        return []
    losses = [(best.to_loss(metrics.get(best.metric, math.nan)), epoch) for epoch, metrics in enumerate(history, 1)]
    return [epoch for _, epoch in sorted(pair for pair in losses if math.isfinite(pair[0]))]
