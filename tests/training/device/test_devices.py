"""Jobs that spread their members over several devices: here logical ones, which are all the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.job.events import Planned
from nasflow.job.spec import JobSpec
from nasflow.training import job_driver
from nasflow.training.batches.batch_runs import Run
from nasflow.training.device.devices import Devices
from nasflow.training.driver import Driver
from tests.training.fused_jobs import same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train
from tests.training.models import counted_data

COUNTED = {"target": "tests.training.models.counted_data:rows"}
MIXED = "fused_spaces.py:mixed"
CONFIG = evaluator(data=COUNTED, epochs=3)
EXACT = evaluator(data=COUNTED, epochs=3, precision="64-true")


def job(config: Any = CONFIG, count: int = 6, devices: int = 2, **options: Any) -> JobSpec:
    """A job whose trials are on its devices by turns."""
    spec = make_job(MIXED, config, sample(MIXED, config, count), **options)
    return spread(spec, devices)


def spread(spec: JobSpec, devices: int) -> JobSpec:
    members = [member.model_copy(update={"device": member.trial % devices}) for member in spec.members]
    return spec.model_copy(update={"members": members})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Devices]]:
    """The devices of each job."""
    devices: list[Devices] = []

    def make(count: int) -> Devices:
        devices.append(Devices(count))
        return devices[-1]

    monkeypatch.setattr(job_driver, "Devices", make)
    yield devices


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the members of a job were given, run by run."""
    given: list[str] = []
    step, validate = Driver.step, Driver.validate

    def counted_step(driver: Driver, batches: Any) -> None:
        given.append("run")
        step(driver, batches)

    def counted_validate(driver: Driver, batch: Any, index: int) -> None:
        given.append("validation batch")
        validate(driver, batch, index)

    monkeypatch.setattr(Driver, "step", counted_step)
    monkeypatch.setattr(Driver, "validate", counted_validate)
    return given


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_a_sample_is_read_once_and_a_run_is_copied_once(
    tmp_path: Path, made: list[Devices], runs: list[str], fuse: Any
) -> None:
    counted_data.READ.clear()
    train(job(devices=3, fuse=fuse), tmp_path)
    assert set(counted_data.READ.values()) == {CONFIG.epochs}, "once an epoch"
    assert len(counted_data.READ) == 40 + 24
    (devices,) = made
    assert devices.copied == [0, len(runs), len(runs)] and set(runs) == {"run", "validation batch"}


def test_members_have_the_same_bits_as_on_one_device(tmp_path: Path) -> None:
    """Stepped one by one, they depend on nothing else."""
    one, two = (train(job(devices=count), tmp_path / str(count)) for count in (1, 2))
    for trial in range(6):
        assert outcome(two, tmp_path / "2", trial) == outcome(one, tmp_path / "1", trial)


@pytest.mark.parametrize("devices", [2, 3])
def test_fused_members_are_equal_to_those_on_one_device(tmp_path: Path, devices: int) -> None:
    one, more = (train(job(EXACT, devices=n, fuse="always"), tmp_path / str(n)) for n in (1, devices))
    assert not evictions(more)
    for trial in range(6):
        same(outcome(more, tmp_path / str(devices), trial), outcome(one, tmp_path / "1", trial), 1e-12)
    units = [unit.members for event in more if isinstance(event, Planned) for unit in event.units]
    assert units and all(len({trial % devices for trial in members}) == 1 for members in units)
    assert sum(map(len, units)) == 6, "each is in a unit of its device"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a GPU, and another one")
@pytest.mark.parametrize("fuse", ["never", "always"])
def test_members_on_two_gpus_are_equal_to_those_on_one(tmp_path: Path, fuse: Any) -> None:
    one, two = (train(job(EXACT, devices=n, fuse=fuse), tmp_path / str(n)) for n in (1, 2))
    assert not evictions(two)
    assert torch.cuda.max_memory_allocated(1) > 0
    for trial in range(6):
        same(outcome(two, tmp_path / "2", trial), outcome(one, tmp_path / "1", trial), 1e-9)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_job_goes_on_with_another_number_of_devices(tmp_path: Path, before: int, after: int) -> None:
    whole = train(job(devices=1), tmp_path / "whole")
    interrupted(job(devices=before), tmp_path / "parts", 3, 1)
    interrupted(job(devices=after), tmp_path / "parts", 2, 2)
    events = train(job(devices=before), tmp_path / "parts")
    for trial in range(6):
        assert outcome(events, tmp_path / "parts", trial) == outcome(whole, tmp_path / "whole", trial)


def test_fused_members_go_on_with_another_number_of_devices(tmp_path: Path) -> None:
    whole = train(job(EXACT, devices=1, fuse="always"), tmp_path / "whole")
    interrupted(job(EXACT, devices=2, fuse="always"), tmp_path / "parts", 3, 1)
    events = train(job(EXACT, devices=1, fuse="always"), tmp_path / "parts")
    for trial in range(6):
        same(outcome(events, tmp_path / "parts", trial), outcome(whole, tmp_path / "whole", trial), 1e-12)


def test_those_that_wait_enter_on_their_own_device(tmp_path: Path) -> None:
    """Two train at a time, on whichever device they are."""
    spec = job(devices=2).model_copy(update={"places": 2})
    events = train(spec, tmp_path / "two")
    alone = train(job(devices=1), tmp_path / "one")
    for trial in range(6):
        assert outcome(events, tmp_path / "two", trial) == outcome(alone, tmp_path / "one", trial)


def test_folds_and_repeats_of_a_trial_are_on_one_device(tmp_path: Path) -> None:
    for values in ({"folds": 2}, {"repeats": 2}):
        config = evaluator(data=COUNTED, epochs=2, **values)
        name = next(iter(values))
        one, two = (train(job(config, 3, devices=n), tmp_path / name / str(n)) for n in (1, 2))
        for trial in range(3):
            where = tmp_path / name
            assert outcome(two, where / "2", trial) == outcome(one, where / "1", trial)


def test_a_member_that_fails_leaves_those_of_all_devices_untouched(tmp_path: Path) -> None:
    members = sample(MIXED, CONFIG, 4)
    broken = {**dict(members[1]), "width0": -1}
    spec = spread(make_job(MIXED, CONFIG, [members[0], broken, members[2], members[3]]), 2)
    events = train(spec, tmp_path / "two")
    assert evictions(events).keys() == {1}
    whole = train(make_job(MIXED, CONFIG, members), tmp_path / "one")
    for trial in (0, 2, 3):
        assert outcome(events, tmp_path / "two", trial) == outcome(whole, tmp_path / "one", trial)


def test_a_member_of_a_device_that_is_not_there_takes_one_that_is() -> None:
    devices = Devices(2)
    assert [devices.index(assigned) for assigned in range(5)] == [0, 1, 0, 1, 0]


def test_a_run_is_copied_at_once() -> None:
    """Each device has memory of its own; batches of one run are parts of one copy."""
    devices = Devices(2)
    run = Run([(torch.ones(4, 3), torch.zeros(4)), (torch.ones(2, 3), torch.zeros(2))])
    copies = devices.copies(run)
    assert copies.on(0) is run
    there = copies.on(1)
    assert there is copies.on(1) and devices.copied == [0, 1]
    assert [x.shape for x, _ in there] == [x.shape for x, _ in run]
    assert there[0][0].data_ptr() != run[0][0].data_ptr()
    assert there[0][0].untyped_storage().data_ptr() == there[1][0].untyped_storage().data_ptr()


def test_batches_of_any_form_are_copied() -> None:
    devices = Devices(2)
    run = [{"x": torch.ones(2), "names": ["a", "b"]}, {"x": torch.ones(3), "names": ["c"]}]
    assert str(list(devices.copies(run).on(1))) == str(run)
