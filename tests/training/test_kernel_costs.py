"""Jobs that are given costs of kernels, and jobs that tell them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from nasflow.job.events import Event, Measured, Planned, parse_event, read_lines
from nasflow.job.spec import JobSpec, job_dir
from nasflow.kernel_costs import CostCache, Figures, StudyCosts
from tests.training.jobs import evaluator, make_job, sample, train

NET = "spaces.py:net"
CONFIG = evaluator(epochs=1, optimizer={"name": "adam", "lr": {"float": [1e-3, 1e-2]}})


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of a cache folder for each job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-0"))
    return tmp_path


def job(costs: dict[str, Figures] | None = None) -> JobSpec:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 12), fuse="measured")
    return JobSpec.model_validate_json(spec.model_copy(update={"kernel_costs": costs or {}}).model_dump_json())


def told(events: Iterable[Event]) -> list[Measured]:
    return [event for event in events if isinstance(event, Measured)]


def plans(events: Iterable[Event]) -> list[tuple[object, object]]:
    return [(event.units, event.alone) for event in events if isinstance(event, Planned)]


def run_elsewhere(spec: JobSpec, root: Path, cache: Path) -> Sequence[Event]:
    """Run a job as a service does, in a process with another cache; its events."""
    folder = job_dir(root, spec.job_id)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(spec.model_dump_json())
    runner = [sys.executable, "-m", "nasflow.training.runner", str(folder / "job.json")]
    subprocess.run(runner, check=True, env=os.environ | {"XDG_CACHE_HOME": str(cache)})
    return [parse_event(line) for line in read_lines(folder / "events.jsonl")[0]]


def collected(events: Iterable[Event], folder: Path) -> dict[str, Figures]:
    """What a controller gives its next job after these events."""
    costs = StudyCosts(CostCache(folder))
    for event in told(events):
        costs.add(event.place, event.figures)
    return costs.given()


def check_that_the_next_one_measures_nothing(
    caches: Path, run: Callable[[JobSpec, Path, Path], Sequence[Event]]
) -> None:
    first = run(job(), caches / "first", caches / "cache-1")
    [event] = told(first)
    costs = collected(first, caches / "controller")
    assert costs == {event.place: event.figures}
    kept = CostCache(caches / "cache-1" / "nasflow").read(event.place)
    assert kept.items() <= CostCache(caches / "controller").read(event.place).items(), "the job's own cache is told"
    second = run(job(costs), caches / "second", caches / "cache-2")
    assert told(second) == []
    assert not list((caches / "cache-2").rglob("kernel-costs-*")), "nothing was measured"
    assert plans(second) == plans(first)


def test_a_job_tells_what_it_measured_and_the_next_one_measures_nothing(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(spec: JobSpec, root: Path, cache: Path) -> Sequence[Event]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        return train(spec, root)

    check_that_the_next_one_measures_nothing(caches, run)


@pytest.mark.long
def test_so_do_jobs_in_processes_of_their_own(caches: Path) -> None:
    check_that_the_next_one_measures_nothing(caches, run_elsewhere)


def test_a_trial_without_others_measures_nothing(caches: Path) -> None:
    spec = job()
    assert told(train(spec.model_copy(update={"members": spec.members[:1]}), caches / "alone")) == []


def test_given_costs_stand_before_those_of_the_host(caches: Path) -> None:
    """The units of a job follow from what it was given: with loops that cost nothing it has none."""
    first = train(job(), caches / "first")
    costs = collected(first, caches / "controller")
    [[place, figures]] = costs.items()
    free = {name: 0.0 if name.startswith(("Loop", "a step")) else seconds for name, seconds in figures.items()}
    looping = train(job({place: free}), caches / "looping")
    assert [units for units, _ in plans(looping)] == [[]]
    assert not {name for event in told(looping) for name in event.figures} & figures.keys()


def test_costs_of_another_device_mean_nothing(caches: Path) -> None:
    first = train(job(), caches / "first")
    [[place, figures]] = collected(first, caches / "controller").items()
    other = "0" * 16
    assert place != other
    second = train(job({other: dict.fromkeys(figures, 0.0)}), caches / "second")
    assert plans(second) == plans(first), "by what this machine knows"
    assert {event.place for event in told(second)} == {place}, "which the controller does not know"


def test_many_figures_are_told_in_lines_that_can_be_read(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasflow.training.unit.reporting.MOST_TOLD", 10)
    events = told(train(job(), caches / "first"))
    assert len(events) > 1
    assert all(len(event.figures) <= 10 for event in events)
    names = [name for event in events for name in event.figures]
    assert len(names) == len(set(names))
    assert json.dumps(events[0].model_dump(mode="json"), allow_nan=False)


def test_jobs_that_do_not_measure_tell_nothing(caches: Path) -> None:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 3), fuse="always")
    assert told(train(spec, caches / "always")) == []
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 3), fuse="never")
    assert told(train(spec, caches / "never")) == []
