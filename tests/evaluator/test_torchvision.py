"""Data sets as torchvision's train as they are: pairs of an image and a number, and `targets`."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nasflow.config.search import SearchConfig
from nasflow.evaluator.check import check_search
from nasflow.evaluator.loading.folds import split
from nasflow.job.events import Epoch, Event, Final
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.training.training_job import TrainingJob

CONFIG = {
    "name": "pictures",
    "space": {"target": "nasflow.space.ready:cell_cnn", "params": {"in_channels": 3, "classes": 3}},
    "evaluator": {"kind": "classification", "epochs": 2, "folds": 2},
}


class Pictures(Dataset[tuple[Any, int]]):
    """Of bytes `[H, W, C]`, which `transform` turns into a tensor."""

    def __init__(self, transform: Any):
        self.data = torch.randint(256, (24, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        self.targets, self.transform = [number % 3 for number in range(24)], transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.data[index]), self.targets[index]


def scaled(image: torch.Tensor) -> torch.Tensor:
    return image.permute(2, 0, 1) / 255


def alike() -> DataLoader[Any]:
    return DataLoader(Pictures(scaled), 6, shuffle=True)


def torchvisions() -> DataLoader[Any]:
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    return DataLoader(FakeData(24, (3, 8, 8), 3, ToTensor()), 6, shuffle=True)


def finals(load: str, folder: Path) -> list[Final]:
    evaluator = CONFIG["evaluator"] | {"data": {"target": f"{Path(__file__)}:{load}"}}  # type: ignore[operator]
    search = SearchConfig.model_validate(CONFIG | {"evaluator": evaluator, "base_dir": folder})
    space = check_search(search)
    members = [MemberSpec(trial=n, architecture=space.sample(random.Random(n)), seed=n) for n in range(2)]
    events: list[Event] = []
    TrainingJob(JobSpec.of_search(search, "job", search.evaluator.data, members), folder, events.append).run()
    assert len([event for event in events if isinstance(event, Epoch)]) == 4
    return [event for event in events if isinstance(event, Final)]


def test_a_data_set_like_torchvisions(tmp_path: Path) -> None:
    assert all(0 <= final.metrics["val_accuracy"] <= 1 for final in finals("alike", tmp_path))
    for _, validation in split(alike(), 4, 0, "alike"):
        assert [sorted(y.tolist()) for _, y in validation] == [[0, 0, 1, 1, 2, 2]], "its targets are known"


def test_one_of_torchvisions(tmp_path: Path) -> None:
    """Where it can be loaded: on PyPI it is built for CUDA, and has to fit torch's version and build."""
    try:
        torchvisions()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs torchvision: {error}")
    assert all(0 <= final.metrics["val_accuracy"] <= 1 for final in finals("torchvisions", tmp_path))
