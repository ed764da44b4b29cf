"""Data sets of dicts, and those of Hugging Face's own package."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from nasflow.config.search import DataConfig, SearchConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.check import check_search
from nasflow.evaluator.hugging_face import Columns
from nasflow.evaluator.loading.data_source import load_data
from nasflow.job.events import Final
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.training.training_job import TrainingJob

ROWS = [{"a": float(n), "b": n * n, "image": [[n % 5]], "label": n % 2} for n in range(40)]
TARGET = "nasflow.evaluator.hugging_face:HuggingFace"


def rows_of(kind: str) -> Any:
    if kind == "list":
        return ROWS
    datasets = pytest.importorskip("datasets", reason="needs datasets: install nasflow[zoo]")
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    return datasets.Dataset.from_dict(columns).with_format("torch" if kind == "tensors" else None)


KINDS = [
    "list",
    pytest.param("columns", marks=pytest.mark.long),
    pytest.param("tensors", marks=pytest.mark.long),
]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_become_pairs(kind: str) -> None:
    samples = Columns(rows_of(kind), ["a", "b"], "label")
    assert len(samples) == 40 and samples.targets.tolist() == [n % 2 for n in range(40)]
    ((x, y), *_) = DataLoader(samples, 8)
    assert x.dtype == torch.float32 and torch.equal(x, torch.tensor([[float(n), n * n] for n in range(8)]))
    assert y.tolist() == [n % 2 for n in range(8)]
    one = Columns(rows_of(kind), "image", "label")[3]
    assert one[0].tolist() == [[3]] and int(one[1]) == 1


def test_bytes_become_shares() -> None:
    pixels = Columns([{"image": torch.tensor([0, 51, 255], dtype=torch.uint8), "label": 0}], "image", "label")
    torch.testing.assert_close(pixels[0][0], torch.tensor([0, 0.2, 1]))


def load(folder: Path, folds: int | None = None, **params: Any) -> Any:
    files = {}
    for split, rows in (("train", ROWS[:30]), ("held", ROWS[30:])):
        files[split] = str(folder / f"{split}.jsonl")
        Path(files[split]).write_text("\n".join(map(json.dumps, rows)))
    known = {"path": "json", "data_files": files, "cache_dir": str(folder / "cache"), "validation": "held"}
    options = known | {"features": ["a", "b"], "label": "label", "batch_size": 8} | params
    return load_data(DataConfig(target=TARGET, params=options), folder, folds=folds), options


@pytest.mark.long
def test_a_search_on_files_that_hugging_face_reads(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs datasets: install nasflow[zoo]")
    data, params = load(tmp_path)
    assert [sum(len(y) for _, y in part) for part in (data.train, data.validation)] == [30, 10]
    folds, _ = load(tmp_path, 3, validation=None)
    assert [sorted(y for _, ys in fold.validation for y in ys.tolist()) for fold in folds.folds] == [
        [0] * 5 + [1] * 5
    ] * 3
    search = SearchConfig.model_validate(
        {
            "name": "rows",
            "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 2, "classes": 2}},
            "evaluator": {"kind": "classification", "data": {"target": TARGET, "params": params}, "epochs": 2},
            "base_dir": tmp_path,
        }
    )
    space = check_search(search)
    members = [MemberSpec(trial=n, architecture=space.sample(random.Random(n)), seed=n) for n in range(2)]
    events: list[Any] = []
    TrainingJob(JobSpec.of_search(search, "job", search.evaluator.data, members), tmp_path, events.append).run()
    assert len([event for event in events if isinstance(event, Final)]) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"validation": "test"}, r"params.validation: json has no split 'test'; it has train, held"),
        ({"features": ["a", "c"]}, r"params.features: json has no column 'c'; it has a, b, image, label"),
        ({"label": "y"}, r"params.label: json has no column 'y'; it has a, b, image, label"),
    ],
)
def test_mistakes(params: dict[str, Any], said: str, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs datasets: install nasflow[zoo]")
    with pytest.raises(ConfigError, match=f"evaluator.data.{said}"):
        load(tmp_path, **params)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"evaluator.data: HuggingFace needs the package datasets .*; install it"):
        load(tmp_path)
