"""The examples of docs/evaluators.md work as they stand there."""

import contextlib
import difflib
import io
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from nasflow.config.search import DataConfig, MergeConfig, load_config
from nasflow.evaluator.check import check_search
from nasflow.evaluator.loading.data_source import load_data
from nasflow.job.events import Event, Final, Planned
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.load_target import load_target
from nasflow.training.batches.seeded_loader import SeededLoader
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


def labels(loader: Any, *epochs: int) -> list[torch.Tensor]:
    """The labels of each epoch, by a loader that was just made."""
    seeded, found = SeededLoader(loader, seed=1), []
    for seeded.epoch in epochs:
        found.append(torch.cat([y for _, y in seeded]))
    return found


def goes_on(make: Callable[[], Any]) -> torch.Tensor:
    """The labels of the first epoch, which another follows; that one is the same after a restart."""
    first, second = labels(make(), 0, 1)
    assert len(first) == len(second) and not torch.equal(first, second)
    assert torch.equal(labels(make(), 1)[0], second)
    return first


def source(name: str, folder: Path) -> Path:
    (text,) = (file["text"] for file in FILES.finditer(TEXT) if file["name"] == name)
    (folder / name).write_text(text)
    return folder


def test_a_loader_of_tensors_goes_on_from_any_epoch(tmp_path: Path) -> None:
    load = load_target("rows.py:load", source("rows.py", tmp_path))
    assert len(goes_on(lambda: load()[0])) == 1400


def test_a_stream_goes_on_from_any_epoch(tmp_path: Path) -> None:
    load = load_target("stream.py:load", source("stream.py", tmp_path))
    assert len(goes_on(lambda: load()[0])) == 1437


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_shards_go_on_from_any_epoch(workers: int, tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="needs webdataset: install nasflow[zoo]")
    urls = []
    for shard in range(4):
        urls.append(str(tmp_path / f"{shard}.tar"))
        with tarfile.open(urls[-1], "w") as tar:
            for number in range(24 * shard, 24 * shard + 24):
                row = io.BytesIO()
                np.save(row, np.full(3, number, np.float32))
                for kind, content in (("npy", row.getvalue()), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:04d}.{kind}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    shards = load_target("shards.py:Shards", source("shards.py", tmp_path))
    first = goes_on(lambda: DataLoader(shards(urls), 16, num_workers=workers))
    assert sorted(first.tolist()) == list(range(96))


def test_data_that_split_themselves_into_folds(tmp_path: Path) -> None:
    source("grouped.py", tmp_path)
    data = load_data(DataConfig(target="grouped.py:load"), tmp_path, folds=3)
    parts = [torch.cat([x for x, _ in fold.validation or ()]) for fold in data.folds]
    assert sum(map(len, parts)) == 1797 and min(map(len, parts)) > 500


@pytest.mark.long
def test_columns_of_a_data_set_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs datasets: install nasflow[zoo]")
    train, validation = load_target("columns.py:load", source("columns.py", tmp_path))()
    assert [sum(len(y) for _, y in part) for part in (train, validation)] == [80, 20]
    assert next(iter(train))[0].shape == (16, 1)
