"""Joint steps that are run as recorded end as those that run one by one, whatever they depend on."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nasflow.training.unit.lockstep.joint.recorded import Recording
from nasflow.training.unit.lockstep.joint.recordings import Recordings
from nasflow.training.unit.lockstep.joint.unit import JointUnit
from tests.training.fused_jobs import fused_and_apart, interrupted_as_whole, same
from tests.training.interrupted import interrupted
from tests.training.jobs import make_job, outcome, sample, train
from tests.training.unit.test_lockstep import lightning

SPACE = "fused_spaces.py:mixed"
RECORDED = [
    *("Base", "Measured", "ByHook", "ByGlobal", "ByLayer", "ByMode", "BySize", "Views", "Detached"),
    *("Softly", "Normalizes"),
]
OTHERS = ["MeasuredByRow", "ByEpoch", "ByIndex", "ByPositions", "ByContent", "WritesTargets", "WritesViews"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts steps that are run as recorded, joint steps, and recordings."""
    counted: Counter[str] = Counter()
    for kind, name in ((Recording, "compute"), (JointUnit, "_compute"), (JointUnit, "_learn")):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name), counted))
    return counted


def counting(method: Callable[..., object], counted: Counter[str]) -> Callable[..., object]:
    def run(*args: object) -> object:
        counted[method.__name__] += 1
        return method(*args)

    return run


def recorded(name: str, **values: object):
    return lightning(name, file="recorded_modules.py", **values)


@pytest.mark.parametrize("name", RECORDED)
def test_steps_that_are_recorded(name: str, tmp_path: Path, runs: Counter[str]) -> None:
    fused_and_apart(SPACE, recorded(name), tmp_path, 5)
    assert runs["compute"] == runs["_compute"] + runs["_learn"] > runs["_learn"]


@pytest.mark.parametrize("name", OTHERS)
def test_steps_that_depend_on_more(name: str, tmp_path: Path, runs: Counter[str]) -> None:
    fused_and_apart(SPACE, recorded(name), tmp_path, 5)
    assert runs["compute"] < runs["_compute"] + runs["_learn"]


def test_a_loss_without_a_gradient_in_some_batches(tmp_path: Path) -> None:
    fused_and_apart(SPACE, recorded("WithoutGradients"), tmp_path, 3, all_fused=False)


@pytest.mark.parametrize("name", ["Base", "Measured", "ByHook"])
def test_single_precision(name: str, tmp_path: Path, runs: Counter[str]) -> None:
    config = recorded(name, precision="32-true", epochs=2)
    fused_and_apart(SPACE, config, tmp_path, 5, tolerance=1e-3)
    assert runs["compute"]


@pytest.mark.parametrize(
    "name", ["Measured", *(pytest.param(name, marks=pytest.mark.long) for name in ("ByHook", "ByGlobal"))]
)
def test_an_interrupted_job_goes_on_to_the_same_bits(name: str, tmp_path: Path, runs: Counter[str]) -> None:
    config = recorded(name, precision="32-true")
    interrupted_as_whole(make_job(SPACE, config, sample(SPACE, config, 4), fuse="always"), tmp_path)
    assert runs["compute"]


def test_members_that_end_at_different_epochs(tmp_path: Path, runs: Counter[str]) -> None:
    fused_and_apart(SPACE, recorded("Measured", epochs={"pick": [1, 2, 4]}), tmp_path, 6)
    assert runs["compute"]


def test_a_step_is_recorded_once_for_each_size_of_its_batches(tmp_path: Path, runs: Counter[str]) -> None:
    config = recorded("Base", epochs=6)
    fused_and_apart(SPACE, config, tmp_path, 4, verify="epoch")
    assert runs["_learn"] == 3  # whole batches and the last of training, and those of validation


@pytest.mark.long
def test_what_changes_in_every_epoch_goes_on_to_the_same_bits(tmp_path: Path, runs: Counter[str]) -> None:
    config = recorded("ByHook", precision="32-true", epochs=12)
    spec = make_job(SPACE, config, sample(SPACE, config, 3), fuse="always")
    whole = train(spec, tmp_path / "whole")
    assert runs["compute"] == runs["_compute"] + runs["_learn"]
    interrupted(spec, tmp_path / "stopped", trial=1, epoch=4)
    events = train(spec, tmp_path / "stopped")
    for trial in range(3):
        same(outcome(whole, tmp_path / "whole", trial), outcome(events, tmp_path / "stopped", trial), 0.0)


def test_recordings_are_found_by_what_they_read() -> None:
    class Reader:
        def __init__(self, value: object):
            self.value = value

        def signature(self, step: object, names: frozenset[str]) -> object:
            return self.value

    def make(value: object) -> Recording:
        return Recording(frozenset(), value, None, None, None, False)  # type: ignore[arg-type]

    found = Recordings()
    first = found.find(make, "key", Reader(1), lambda: make(1))  # type: ignore[arg-type]
    assert found.find(make, "key", Reader(2), lambda: make(2)) is not first  # type: ignore[arg-type]
    assert found.find(make, "key", Reader(1), lambda: pytest.fail("it is known")) is first  # type: ignore[arg-type]
    for value in range(3, 20):
        found.find(make, "key", Reader(value), lambda value=value: make(value))  # type: ignore[arg-type,misc]
    assert found.find(make, "key", Reader(1), lambda: make(1)) is not first  # type: ignore[arg-type]
    assert found.find(make, "other", Reader(1), lambda: 1 / 0) is None  # type: ignore[arg-type,return-value]
    assert found.find(make, "other", Reader(1), lambda: pytest.fail("it was tried")) is None  # type: ignore[arg-type]
