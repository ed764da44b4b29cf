"""The examples of docs/evaluators.md work as they stand there."""

import contextlib
import random
import re
from pathlib import Path

import pytest
import torch

from nasflow.config.search import DataConfig, load_config
from nasflow.evaluator.check import check_search
from nasflow.job.events import Event, Final
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.training.member_maker import load_job_data
from nasflow.training.program.job import ProgramJob
from nasflow.training.seeded_loader import SeededLoader

TEXT = (Path(__file__).parents[2] / "docs" / "evaluators.md").read_text()
FILES = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("config", ["function.yaml", "command.yaml"])
def test_code_that_trains_by_itself(tmp_path: Path, config: str) -> None:
    for file in FILES.finditer(TEXT):
        (tmp_path / file["name"]).write_text(file["text"])
    search = load_config(tmp_path / config)
    space = check_search(search)
    member = MemberSpec(trial=0, architecture=space.sample(random.Random(0)), seed=1)
    events: list[Event] = []
    with contextlib.chdir(tmp_path):
        ProgramJob(JobSpec.of_search(search, "job", None, [member]), tmp_path, events.append).run()
    (final,) = (event for event in events if isinstance(event, Final))
    assert final.epochs == 5 and final.metrics["val_accuracy"] > 0.5


def test_a_stream_goes_on_from_any_epoch(tmp_path: Path) -> None:
    (stream,) = (file["text"] for file in FILES.finditer(TEXT) if file["name"] == "stream.py")
    (tmp_path / "stream.py").write_text(stream)

    def epochs(*numbers: int) -> list[torch.Tensor]:
        loader = load_job_data(DataConfig(target="stream.py:load"), tmp_path, seed=1).train
        assert isinstance(loader, SeededLoader)
        found = []
        for loader.epoch in numbers:
            found.append(torch.cat([y for _, y in loader]))
        return found

    first, second = epochs(0, 1)
    assert len(first) == 1437 and not torch.equal(first, second)
    assert torch.equal(epochs(1)[0], second)
