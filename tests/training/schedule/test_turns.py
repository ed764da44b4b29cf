"""Who trains when, without training: places are kept, everyone gets a turn, and interruptions change nothing."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from nasflow.config.search import HalvingPrunerConfig, MedianPrunerConfig, Objective
from nasflow.training.schedule.pruners import HalvingPruner, MedianPruner, Pruner
from nasflow.training.schedule.turns import Past, Roster

LOSS = [Objective(metric="loss", direction="minimize")]
PRUNERS = [
    None,
    MedianPruner(LOSS, MedianPrunerConfig(min_others=1)),
    HalvingPruner(LOSS, HalvingPrunerConfig()),
    HalvingPruner(LOSS, HalvingPrunerConfig(reduction_factor=2)),
]


@dataclass(frozen=True)
class Course:
    """What a trial would do: its loss in each epoch until it ends, or fails in the one after."""

    losses: list[float]
    fails: bool = False


@dataclass
class Job:
    """The files and the log of a job, and how it goes."""

    courses: Mapping[int, Course]
    places: int
    pruner: Pruner | None
    every_epochs: int = 1
    saved: dict[int, Past] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    trained: list[tuple[int, int]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def run(self, saves: int | None = None, others: Mapping[int, Past] | None = None) -> None:
        """Go on from what is saved, to the end or until so many more checkpoints are written.

        Args:
            others: what is on record of trials that are not trained any more.
        """
        past = self.saved | dict(others or {})
        roster = Roster(sorted(self.courses), self.places, self.pruner, past)
        begun = set[int]()
        while roster.open_turn():
            assert roster.turn
            begun |= set(roster.turn)
            assert len(begun) <= self.places
            self.widths.append(len(roster.turn))
            trained = [trial for trial in roster.turn if not self._fails(trial, roster)]
            for trial in trained:
                roster.take(trial, {"loss": self.courses[trial].losses[roster.epoch]}, parameters=7)
                self.trained.append((trial, roster.epoch + 1))
            epoch = roster.epoch + 1
            at_end = {trial for trial in trained if self._ends(trial, epoch)}
            at_end |= roster.close_turn([trial for trial in trained if trial not in at_end])
            for trial in trained:
                if trial in at_end or epoch % self.every_epochs == 0:
                    if saves == 0:
                        return
                    self._save(trial, epoch, trial in at_end)
                    saves = None if saves is None else saves - 1
                if trial in at_end:
                    roster.leave(trial)
            begun -= at_end | self.failed

    def _fails(self, trial: int, roster: Roster) -> bool:
        course = self.courses[trial]
        if not course.fails or roster.epoch < len(course.losses):
            return False
        self.failed.add(trial)
        roster.leave(trial)
        return True

    def _ends(self, trial: int, epoch: int) -> bool:
        return epoch == len(self.courses[trial].losses) and not self.courses[trial].fails

    def _save(self, trial: int, epoch: int, ended: bool) -> None:
        history = [{"loss": loss} for loss in self.courses[trial].losses[:epoch]]
        self.saved[trial] = Past(history, 7, ended=ended)

    @property
    def outcome(self) -> tuple[dict[int, int], set[int]]:
        """The epochs of those that ended, and those that failed."""
        return {trial: len(past.history) for trial, past in self.saved.items() if past.ended}, self.failed

    def anew(self) -> "Job":
        return replace(self, saved={}, failed=set(), trained=[], widths=[])


courses = st.builds(Course, st.lists(st.integers(0, 5).map(float), min_size=1, max_size=9), st.booleans())
jobs = st.builds(
    Job,
    st.dictionaries(st.integers(0, 30), courses, min_size=1, max_size=14),
    places=st.integers(1, 15),
    pruner=st.sampled_from(PRUNERS),
    every_epochs=st.integers(1, 4),
)


@given(jobs)
def test_everyone_has_its_turns(job: Job) -> None:
    """Each trains its epochs in order, once, to its end, its failure or its verdict; never more than have places."""
    job.run()
    ended, failed = job.outcome
    assert ended.keys() | failed == job.courses.keys()
    for trial, course in job.courses.items():
        epochs = [epoch for other, epoch in job.trained if other == trial]
        assert epochs == list(range(1, len(epochs) + 1))
        if trial in failed:
            assert course.fails
            assert len(epochs) == len(course.losses)
        elif job.pruner is None:
            assert len(epochs) == len(course.losses)


@given(jobs, st.lists(st.integers(0, 9), max_size=4))
def test_an_interrupted_job_comes_to_the_same_end(job: Job, interruptions: list[int]) -> None:
    """Between any two checkpoints, again and again, however far back the checkpoints reach."""
    undisturbed = job.anew()
    undisturbed.run()
    for saves in interruptions:
        job.run(saves)
    job.run()
    assert job.outcome == undisturbed.outcome
    if job.every_epochs == 1:
        assert len(job.trained) - len(undisturbed.trained) <= len(interruptions) * job.places


@given(jobs, st.integers(0, 30))
def test_a_job_that_is_started_again_without_those_that_ended(job: Job, saves: int) -> None:
    """Their metrics are known still: those that failed are not tried again, and the others are judged as before."""
    undisturbed = job.anew()
    undisturbed.run()
    job.run(saves)
    others = {trial: past for trial, past in job.saved.items() if past.ended}
    for trial in job.failed:
        others[trial] = Past([{"loss": loss} for loss in job.courses[trial].losses], 7, failed=True)
    begun = len(job.trained)
    job.run(others=others)
    assert job.outcome == undisturbed.outcome
    assert not {trial for trial, _ in job.trained[begun:]} & others.keys()


@given(jobs, st.randoms())
def test_the_order_in_which_members_end_an_epoch_does_not_matter(job: Job, shuffler: random.Random) -> None:
    roster = Roster(sorted(job.courses), job.places, job.pruner)
    other = Roster(sorted(job.courses), job.places, job.pruner)
    assert roster.open_turn()
    assert other.open_turn()
    losses = {trial: {"loss": job.courses[trial].losses[0]} for trial in roster.turn}
    turned = shuffler.sample(roster.turn, len(roster.turn))
    for trial in roster.turn:
        roster.take(trial, losses[trial], 1)
    for trial in turned:
        other.take(trial, losses[trial], 1)
    assert roster.close_turn(sorted(losses)) == other.close_turn(turned)


def widths(lengths: Sequence[int], places: int) -> list[int]:
    job = Job({trial: Course([0.0] * length) for trial, length in enumerate(lengths)}, places, None)
    job.run()
    return job.widths


def test_newcomers_wait_for_company() -> None:
    """Trials that stop one after the other: those that take their places don't train alone to catch up."""
    assert widths([4] * 8, places=8) == [8] * 4
    assert widths([4] * 8, places=4) == [4] * 8
    assert widths([4] * 8, places=1) == [1] * 32
    stopping = [2, 3, 4, 5, 6, 7, 8, 9, *[9] * 8]
    turns = widths(stopping, places=8)
    assert sum(turns) == sum(stopping)
    assert len(turns) <= 23  # 53 if each newcomer caught up at once


def test_past_decisions_stand() -> None:
    """A verdict on record is not revised, be it that the config's pruner has changed meanwhile."""
    went_on = {trial: Past([{"loss": float(trial)}], 1) for trial in range(9)}
    roster = Roster(range(9), None, HalvingPruner(LOSS, HalvingPrunerConfig()), went_on)
    assert roster.open_turn()
    assert (roster.epoch, roster.turn) == (1, list(range(9)))


def test_a_job_that_has_nothing_left() -> None:
    assert not Roster([]).open_turn()
    roster = Roster([3], past={3: Past([{"loss": 1.0}], 1, ended=True)})
    assert not roster.open_turn()
    assert roster.turn == []
