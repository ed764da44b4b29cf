"""The examples of docs/evaluators.md work as they stand there."""

import contextlib
import difflib
import random
import re
from pathlib import Path

import pytest

from nasflow.config.search import MergeConfig, load_config
from nasflow.evaluator.check import check_search
from nasflow.job.events import Event, Final, Planned
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.training.program.job import ProgramJob
from nasflow.training.training_job import TrainingJob

TEXT = (Path(__file__).parents[2] / "docs" / "evaluators.md").read_text()
FILES = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def write_files(folder: Path) -> None:
    for file in FILES.finditer(TEXT):
        (folder / file["name"]).write_text(file["text"])


def test_a_script_becomes_a_search_by_twenty_changed_lines() -> None:
    texts = {file["name"]: file["text"].splitlines() for file in FILES.finditer(TEXT)}
    code = [line for line in difflib.ndiff(texts["script.py"], texts["digits.py"]) if line.startswith("+ ")]
    assert len([line for line in (*code, *texts["digits.yaml"]) if line.strip()]) <= 20


@pytest.mark.parametrize("config", ["digits.yaml", "parts.yaml", "distilled.yaml"])
def test_a_search_that_was_a_script(tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    search = load_config(tmp_path / config)
    space = check_search(search)
    drawn = random.Random(0)
    members = [MemberSpec(trial=trial, architecture=space.sample(drawn), seed=trial) for trial in range(3)]
    spec = JobSpec.of_search(search, "job", search.evaluator.data, members)
    events: list[Event] = []
    TrainingJob(spec.model_copy(update={"merge": MergeConfig(fuse="always")}), tmp_path, events.append).run()
    finals = [event for event in events if isinstance(event, Final)]
    assert len(finals) == 3 and all(final.metrics["val_accuracy"] > 0.4 for final in finals)
    assert any(unit.fused for event in events if isinstance(event, Planned) for unit in event.units)


@pytest.mark.parametrize("config", ["function.yaml", "command.yaml"])
def test_code_that_trains_by_itself(tmp_path: Path, config: str) -> None:
    write_files(tmp_path)
    search = load_config(tmp_path / config)
    space = check_search(search)
    member = MemberSpec(trial=0, architecture=space.sample(random.Random(0)), seed=1)
    events: list[Event] = []
    with contextlib.chdir(tmp_path):
        ProgramJob(JobSpec.of_search(search, "job", None, [member]), tmp_path, events.append).run()
    (final,) = (event for event in events if isinstance(event, Final))
    assert final.epochs == 5 and final.metrics["val_accuracy"] > 0.5
