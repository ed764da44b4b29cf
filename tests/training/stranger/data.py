"""Data of strangers that a ready-made evaluator can or can't use."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from nasflow.evaluator.loading.loaders import TensorLoader
from tests.training.models.spaces import rows


class Pairs(Dataset[Any]):
    """Samples of a list, whose labels may be anything."""

    def __init__(self, x: torch.Tensor, y: Any):
        self.x, self.targets = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.targets[index]


class Stream(IterableDataset[Any]):
    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        yield from zip(self.x, self.y, strict=True)


class Texts(list[str]):
    """Labels as text, of which a part are texts again."""

    def __init__(self, y: Iterable[Any]):
        super().__init__(map(str, y))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, torch.Tensor):
            return [super(Texts, self).__getitem__(number) for number in place.tolist()]
        found = super().__getitem__(place)
        return Texts(found) if isinstance(place, slice) else found


class As(TensorLoader):
    """Gives each batch (x, y) as `change` makes it."""

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor], Any], *args: Any):
        super().__init__(*args)
        self.change = change

    def __iter__(self) -> Iterator[Any]:
        return (self.change(x, y) for x, y in super().__iter__())


LABELS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one class": torch.zeros_like,
    "no last class": lambda y: y % 2,
    "no second class": lambda y: 2 * (y % 2),
    "float": lambda y: y.float(),
    "int8": lambda y: y.to(torch.int8),
    "uint8": lambda y: y.to(torch.uint8),
    "int32": lambda y: y.int(),
    "one-hot": lambda y: F.one_hot(y, 3).float(),
    "one-hot of int": lambda y: F.one_hot(y, 3),
    "column": lambda y: y[:, None],
    "from 1": lambda y: y + 1,
    "from -1": lambda y: y - 1,
    "texts": Texts,
    "complex": lambda y: torch.complex(y.float(), y.float()),
    "nan": lambda y: torch.where(y == 1, torch.nan, y.float()),
    "masked": lambda y: y[:, None].expand(-1, 4),
    "shares of four": lambda y: F.one_hot(y, 4).float(),
}
"""The labels 0, 1, 2 in other forms."""

BATCHES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "dicts": lambda x, y: {"x": x, "y": y},
    "triples": lambda x, y: (x, y, y),
    "inputs": lambda x, y: [x],
    "tensors": lambda x, y: x,
    "texts": lambda x, y: (x, ["yes"] * len(x)),
    "two inputs": lambda x, y: ((x[:, :3], x[:, 3:]), y),
    "two inputs apart": lambda x, y: (x[:, :3], x[:, 3:], y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "inputs as arrays": lambda x, y: (x.numpy(), y),
}


def labelled(how: str) -> Any:
    x, y = rows()
    y = LABELS[how](y)
    return TensorLoader((x[:64], y[:64]), 16, shuffle=True), TensorLoader((x[64:], y[64:]), 16)


def soft_in_training() -> Any:
    x, y = rows()
    soft = 0.8 * F.one_hot(y, 3).double() + 0.2 / 3
    return TensorLoader((x[:64], soft[:64]), 16, shuffle=True), TensorLoader((x[64:], y[64:]), 16)


def rare(of: int) -> Any:
    """Two classes, and a third with so many samples."""
    x, y = rows()
    y = y % 2
    y[:of] = 2
    return DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True), None if of < 0 else TensorLoader((x, y), 32)


def listed() -> Any:
    """Labels in a Python list."""
    x, y = rows()
    return DataLoader(Pairs(x[:64], y[:64].tolist()), 16, shuffle=True), DataLoader(Pairs(x[64:], y[64:].tolist()), 16)


class Picture:
    """What torch can't put into a batch, as PIL's images."""


SAMPLES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "arrays": lambda x, number: x.numpy(),
    "pictures": lambda x, number: Picture(),
    "sizes": lambda x, number: x[: 3 + number % 3],
    "lists": lambda x, number: x.tolist()[: 3 + number % 3],
    "own stack": lambda x, number: torch.stack([x, x[:3]]),
    "own pickle": lambda x, number: refuse(),
    "later": lambda x, number: x[: 3 + number % 3] if number >= 48 else x,
}
"""What a data set gives as inputs."""


def refuse() -> Any:
    raise TypeError("there is no pickle of this")


class Samples(Dataset[Any]):
    def __init__(self, how: str, size: int):
        self.change = SAMPLES[how]  # a lambda, which no process can be sent
        self.x, self.y = rows(size)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return self.change(self.x[number], number), int(self.y[number])


def sampled(how: str, workers: int = 0) -> Any:
    return (
        DataLoader(Samples(how, 64), 16, shuffle=True, num_workers=workers, worker_init_fn=lambda number: None),
        DataLoader(Samples(how, 32), 16),
    )


def in_workers(how: str) -> Any:
    return sampled(how, 2)


def later(which: str) -> Any:
    """The last batch can't be put together; the first are trained on before it is loaded."""
    right, wrong = (DataLoader(Samples(how, 64), 16, collate_fn=as_torch_does) for how in ("arrays", "later"))
    return (wrong, right) if which == "train" else (right, wrong)


class Worse:
    """A loader whose first label is none from the second epoch on."""

    def __init__(self, *tensors: torch.Tensor):
        self.tensors, self.epoch = tensors, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        x, y = self.tensors
        for place in range(0, 64, 16):
            wrong = self.epoch > 0 and place == 0
            yield x[place : place + 16], y[place : place + 16] - (y[place] + 1 if wrong else 0)


def worse() -> Any:
    x, y = rows()
    return Worse(x, y), TensorLoader((x[64:], y[64:]), 16)


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.mean(1) - target).abs().mean()


def in_spawned_workers(how: str) -> Any:
    return DataLoader(Samples(how, 64), 16, num_workers=1, multiprocessing_context="spawn"), [rows()]


def streamed(workers: int) -> Any:
    x, y = rows()
    return DataLoader(Stream(x[:64], y[:64]), 16, num_workers=workers), TensorLoader((x[64:], y[64:]), 16)


def batched(how: str) -> Any:
    x, y = rows()
    return As(BATCHES[how], (x[:64], y[:64]), 16), As(BATCHES[how], (x[64:], y[64:]), 16)


def of_many_lengths() -> Any:
    x, y = rows()
    return [(x[:size], y[:size]) for size in (16, 1, 7)], [(x[64:], y[64:]), (x[:1], y[:1])]


def exhausted(which: str) -> Any:
    """Batches from a generator, which gives them once."""
    x, y = rows()
    lists = [(x[:16], y[:16]), (x[16:32], y[16:32])], [(x[64:], y[64:])]
    train, validation = lists
    return ((each for each in train), validation) if which == "train" else (train, (each for each in validation))


def none_left(which: str, how: str = "in runs") -> Any:
    """Fewer samples than a batch, which is dropped. The loader is one whose batches are loaded in runs, or is not."""
    x, y = rows()
    own: dict[str, Any] = {"in runs": {}, "collated": {"collate_fn": as_torch_does}, "workers": {"num_workers": 2}}[how]
    some, few = TensorLoader((x[:64], y[:64]), 16), DataLoader(TensorDataset(x[:8], y[:8]), 16, drop_last=True, **own)
    return (few, some) if which == "train" else (some, few)


def as_torch_does(samples: list[Any]) -> Any:
    return default_collate(samples)


def several() -> Any:
    train, validation = labelled("uint8")
    return train, [validation, validation]
