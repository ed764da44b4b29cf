"""What the tests of the evaluator room name as targets."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torchmetrics
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from nasflow.config.search import TrainingConfig
from nasflow.evaluator.base import Evaluator
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick


def linear(pick: Pick, features: int = 3, outputs: int = 2) -> nn.Module:
    bias = pick("bias", [True, False])
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs, bias=bias))


def reversing(pick: Pick, widths: list[int]) -> nn.Module:
    """A model whose code changes its params."""
    widths.reverse()
    return nn.Linear(widths[0], pick("outputs", [2, 3]))


@functools.lru_cache
def grid(size: int, device: str | None) -> torch.Tensor:
    return torch.arange(size, device=device)


def cached(pick: Pick, device: str | None = None) -> nn.Module:
    """A model with a tensor that is made once for all models of its size."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    model.register_buffer("grid", grid(pick("size", [4, 5]), device))
    return model


def hollow(pick: Pick) -> nn.Module:
    """A model without values, which its module would fill."""
    with torch.device("meta"):
        return linear(pick)


def trains(model: nn.Module, report: Any) -> None:
    """A function that would train a model."""


def no_model(pick: Pick) -> Any:
    return pick("number", [1, 2])


def pair(size: int = 8, batch_size: int = 4) -> tuple[TensorLoader, TensorLoader]:
    tensors = (torch.arange(3.0 * size).reshape(size, 3), torch.arange(size) % 2)
    return TensorLoader(tensors, batch_size), TensorLoader(tensors, batch_size)


def normed(pick: Pick, norm: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4) if norm else nn.Tanh(), nn.Linear(4, pick("outputs", [2])))


def of_size(size: int, loaded: str = "tensors", kind: str = "float32", drop_last: bool = False) -> Any:
    """Training batches of four samples, of so many samples altogether."""
    x, y = torch.zeros(size, 3, dtype=getattr(torch, kind)), torch.arange(size) % 2
    whole = TensorDataset(x, y)
    train = {
        "tensors": lambda: TensorLoader((x, y), 4),
        "samples": lambda: DataLoader(whole, 4, shuffle=True, drop_last=drop_last),
        "drawn": lambda: DataLoader(whole, 4, sampler=RandomSampler(whole, num_samples=4)),
        "streamed": lambda: DataLoader(Stream(), 4),
        "uncounted": lambda: DataLoader(whole, 4, sampler=Uncounted()),
    }[loaded]()
    return train, TensorLoader((x[:4], y[:4]), 4)


def labelled(how: str, loaded: str = "tensors") -> Any:
    """Training data that are right, and validation data with labels in another form, by one kind of loader."""
    x, y = torch.zeros(8, 3), torch.arange(8) % 2
    other = {
        "float": y.float(),
        "column": y[:, None],
        "from -1": 2 * y - 1,
        "one-hot": torch.nn.functional.one_hot(y).float(),
        "nan": torch.where(y == 1, torch.nan, 0.5),
    }[how]
    whole = TensorDataset(x, other)
    part = TensorDataset(torch.cat([x, x]), torch.cat([torch.zeros_like(other), other]))
    return TensorLoader((x, y), 4), {
        "tensors": lambda: TensorLoader((x, other), 4),
        "samples": lambda: DataLoader(whole, 4),
        "part": lambda: DataLoader(Subset(part, range(8, 16)), 4),
        "drawn": lambda: DataLoader(part, 4, sampler=SubsetRandomSampler(range(8, 16))),
        "drawn of a part": lambda: DataLoader(Subset(part, range(4, 16)), 4, sampler=SubsetRandomSampler(range(4, 12))),
        "rest": lambda: DataLoader(Subset(part, range(8)), 4),
        "rest drawn": lambda: DataLoader(part, 4, sampler=SubsetRandomSampler(range(8))),
        "rest weighted": lambda: DataLoader(part, 4, sampler=WeightedRandomSampler([1.0] * 8 + [0.0] * 8, 8)),
        "rest listed": lambda: DataLoader(part, 4, sampler=range(8)),
        "rest in batches": lambda: DataLoader(part, batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        "rest of a few": lambda: DataLoader(part, 4, sampler=RandomSampler(range(8))),
        "rest but the last": lambda: DataLoader(Subset(part, range(12)), 8, drop_last=True),
        "own batches": lambda: DataLoader(whole, 4, collate_fn=lambda rows: default_collate([(x, 0) for x, _ in rows])),
    }[loaded]()


class Uncounted(Sampler[int]):
    """Counts nothing."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        raise NotImplementedError


class Stream(IterableDataset[Any]):
    """Has no length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(3), torch.tensor(1))] * 8)


def stream() -> tuple[DataLoader[Any], TensorLoader]:
    return DataLoader(Stream(), batch_size=4), pair()[1]


def pair_in_a_list() -> list[TensorLoader]:
    return [*pair()]


def one_loader() -> TensorLoader:
    return pair()[0]


def own_folds(fold: int, folds: int, both: bool = True) -> Any:
    """Leaves out one number each."""
    x = torch.arange(float(folds))
    train = TensorLoader((x[x != fold],), 1)
    return (train, TensorLoader((x[x == fold],), 1)) if both else train


def three() -> Any:
    return pair() + pair()[:1]


def number() -> Any:
    return 3


def broken(size: int = 8) -> Any:
    return size + "8"


class Module(LightningDataModule):
    def __init__(self, size: int = 8, validate: bool = True):
        super().__init__()
        self.size = size
        self.validate = validate
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def train_dataloader(self) -> Any:
        return pair(self.size)[0]

    def val_dataloader(self) -> Any:
        return pair(self.size)[1] if self.validate else None


class AsksTrainer(LightningDataModule):
    """Divides its batches among the processes of its Trainer, of which its collate function is a method."""

    def prepare_data(self) -> None:
        self.prepared_in = self.trainer.current_epoch

    def setup(self, stage: str) -> None:
        self.size = 8 // self.trainer.world_size

    def collate(self, samples: list[Any]) -> Any:
        return default_collate(samples)

    def train_dataloader(self) -> Any:
        size = self.size // self.trainer.num_nodes
        return DataLoader(TensorDataset(*pair()[0].tensors), size, collate_fn=self.collate)

    def test_dataloader(self) -> Any:
        return self.train_dataloader()


class TrainModule(LightningDataModule):
    """Without `val_dataloader`."""

    def train_dataloader(self) -> Any:
        return one_loader()


def from_datasets(one: bool = True) -> LightningDataModule:
    """As Lightning makes it: the methods that give loaders are the object's own."""
    rows = TensorDataset(*pair()[0].tensors)
    return LightningDataModule.from_datasets(rows, rows if one else [rows, rows], batch_size=4)


def listed() -> tuple[list[TensorLoader], tuple[TensorLoader]]:
    train, validation = pair()
    return [train], (validation,)


def named() -> dict[str, TensorLoader]:
    return dict(zip(("train", "validation"), pair(), strict=True))


def combined() -> tuple[CombinedLoader, TensorLoader]:
    return CombinedLoader([*pair()], "min_size"), one_loader()


class SeveralLoaders(Module):
    """Gives them to validate on in a list, a dict or Lightning's combination."""

    def __init__(self, how: str = "list"):
        super().__init__()
        self.how = how

    def val_dataloader(self) -> Any:
        return {"list": [*pair()], "dict": named(), "combined": combined()[0]}[self.how]

    test_dataloader = val_dataloader


class Scaled(LightningModule):
    """A LightningModule of a custom evaluator's."""

    def __init__(self, model: nn.Module, factor: float):
        super().__init__()
        self.model = model
        self.factor = factor

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return (self.model(batch[0]) ** 2).mean() * self.factor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Custom(Evaluator):
    def __init__(self, config: TrainingConfig, factor: float = 1.0):
        super().__init__(config)
        self.factor = factor

    def module(self, model: nn.Module) -> LightningModule:
        return Scaled(model, self.factor)


class NoEvaluator:
    def __init__(self, config: TrainingConfig):
        self.config = config


class Signs(torch.optim.Optimizer):
    """A user's: steps by the signs of gradients."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    decayed = parameter.grad.sign() + group["weight_decay"] * parameter
                    parameter.data = parameter - group["lr"] * decayed  # a new tensor


class Still(torch.optim.Optimizer):
    """A user's without a rate."""

    def __init__(self, params: Any):
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


class Focal(nn.Module):
    """A user's loss (Lin et al. 2017), with a buffer."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.register_buffer("gamma", torch.tensor(gamma))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        chance = output.softmax(1)[torch.arange(len(target)), target]
        return ((1 - chance) ** self.gamma * -chance.log()).mean()


def quartic(output: torch.Tensor, target: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return (scale * (output - target) ** 4).mean()


def is_equal(output: torch.Tensor, target: torch.Tensor) -> Any:
    return torch.equal(output, target)


def by_sample(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target) ** 2


class Largest(torchmetrics.MeanMetric):
    """A user's metric: the mean of the largest logits."""

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:  # type: ignore[override]
        super().update(output.amax(1))
