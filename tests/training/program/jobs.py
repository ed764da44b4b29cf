"""Jobs of programs, run in this process or as a service runs them."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nasflow.config.search import CheckpointConfig, EvaluatorConfig, Objective, Target
from nasflow.job.events import Ended, Epoch, Event, Evicted, Final, parse_event, read_lines
from nasflow.job.spec import JobSpec, MemberSpec, job_dir
from nasflow.space.architecture import Architecture
from nasflow.training.program.job import ProgramJob

HERE = Path(__file__).parent
_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def evaluator(**values: Any) -> EvaluatorConfig:
    return _EVALUATOR.validate_python({"kind": "function", "epochs": 4, **values})


def function(name: str, params: Mapping[str, Any] | None = None, **values: Any) -> EvaluatorConfig:
    return evaluator(target=f"{HERE / 'functions.py'}:{name}", params=dict(params or {}), **values)


def command(code: str, **values: Any) -> EvaluatorConfig:
    """A program in Python that knows `report(epoch=None, **metrics)`."""
    begin = (
        "import json, os, sys, time, signal\n"
        "from pathlib import Path\n"
        "def report(**metrics):\n"
        "    with open(os.environ['NASFLOW_METRICS'], 'a') as file: file.write(json.dumps(metrics) + '\\n')\n"
        "folder = Path(os.environ['NASFLOW_CHECKPOINTS'])\n"
        "trial = json.loads(Path(os.environ['NASFLOW_TRIAL']).read_text())\n"
    )
    return evaluator(**{"kind": "command", "command": ["python", "-c", begin + code], **values})


def make_job(
    config: EvaluatorConfig,
    base_dir: Path,
    members: Sequence[Mapping[str, Any]] = ({"width": 4},),
    space: str = "net",
    **values: Any,
) -> JobSpec:
    return JobSpec(
        job_id="job",
        study="study",
        space=Target(target=f"{HERE / 'functions.py'}:{space}"),
        evaluator=config,
        data=None,
        checkpoint=CheckpointConfig(),
        data_seed=5,
        base_dir=base_dir,
        members=[
            MemberSpec(trial=trial, architecture=Architecture(values), seed=1000 + trial)
            for trial, values in enumerate(members)
        ],
        **{"objectives": [Objective(metric="loss", direction="minimize")], **values},
    )


def train(spec: JobSpec, root: Path) -> list[Event]:
    """Run a job here; its events."""
    events: list[Event] = []
    with contextlib.chdir(spec.base_dir):
        ProgramJob(spec, root, events.append).run()
    return events


def write_job(root: Path, spec: JobSpec) -> Path:
    file = job_dir(root, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(spec.model_dump_json())
    return file


def events_of(job_file: Path) -> list[Event]:
    return [parse_event(line) for line in read_lines(job_file.with_name("events.jsonl"))[0]]


def curve(events: Sequence[Event], metric: str = "loss", trial: int = 0) -> list[float | None]:
    """The values of a trial by epoch; each epoch is trained and told once, apart from being replayed."""
    told = [event for event in events if isinstance(event, Epoch) and event.trial == trial]
    fresh = [event.epoch for event in told if not event.replayed]
    assert len(set(fresh)) == len(fresh), "no epoch is repeated"
    values: dict[int, float | None] = {}
    for event in told:
        assert values.setdefault(event.epoch, event.metrics[metric]) == event.metrics[metric]
    assert list(values) == list(range(1, len(values) + 1))
    return list(values.values())


def final(events: Sequence[Event], trial: int = 0) -> Final:
    (found,) = (event for event in events if isinstance(event, Final) and event.trial == trial)
    return found


def error(events: Sequence[Event], trial: int = 0) -> str:
    (found,) = (event for event in events if isinstance(event, Evicted) and event.trial == trial)
    assert not any(isinstance(event, Final) and event.trial == trial for event in events)
    assert isinstance(events[-1], Ended) and events[-1].error is None
    return found.error


def loaded(path: Path) -> Any:
    return json.loads(path.read_text())
