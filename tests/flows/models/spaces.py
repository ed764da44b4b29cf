"""Spaces for the tests of the flows: small, some of them ill-behaved."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader


class Behaviour(nn.Module):
    """Passes `[B, F]` through, or fails in its own way in training; `hang` also ignores SIGTERM."""

    def __init__(self, kind, delay=0.0):
        super().__init__()
        self.kind = kind
        self.delay = delay
        self.register_buffer("steps", torch.tensor(0))  # saved, so that a retry fails at the same step

    def forward(self, x):
        time.sleep(self.delay)
        self.steps += self.training
        if self.steps > 30:
            if self.kind == "raise":
                raise ValueError("this candidate always raises")
            if self.kind == "hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                threading.Event().wait()
            if self.kind == "exit":
                os._exit(1)
            if self.kind == "nan":
                return x * float("nan")
        return x


def mixed(pick, kinds=("ok",), widths=(8, 16), delay=0.0):
    """A small network for digits in rows; its `kind` says how it behaves after 30 steps."""
    kind = pick("kind", list(kinds))
    width = pick("width", list(widths))
    return nn.Sequential(nn.Linear(64, width), nn.Dropout(0.1), nn.ReLU(), Behaviour(kind, delay), nn.Linear(width, 10))


def uneven(pick, delay):
    """A network that trains at once, and one that waits in each step."""
    kind = pick("kind", ["fast", "slow"])
    return nn.Sequential(nn.Linear(64, 8), Behaviour(kind, delay if kind == "slow" else 0.0), nn.Linear(8, 10))


def conflicting(pick):
    """Asks one label with two lists of options."""
    return nn.Linear(pick("width", [64]), pick("width", [10, 12]))


class Holder(nn.Module):
    """Passes `[B, F]` through, and holds as many MiB from its first step on."""

    def __init__(self, mebibytes):
        super().__init__()
        self.mebibytes = mebibytes
        self.held = None

    def forward(self, x):
        if self.held is None and x.device.type == "cpu" and self.training:
            self.held = b"\1" * (self.mebibytes << 20)
        return x


def greedy(pick, held=(1,)):
    """A network that wants memory."""
    return nn.Sequential(Holder(pick("held", list(held))), nn.Linear(64, 10))


class Waits(nn.Module):
    """Passes `[B, F]` through. The first network to train waits in its first step until so many others have begun to.

    Those that have begun are files in a folder.
    """

    def __init__(self, folder, others):
        super().__init__()
        self.folder = Path(folder)
        self.others = others
        self.began = False

    def forward(self, x):
        if not self.began and x.device.type == "cpu" and self.training:
            self.began = True
            if self._begin() == "first":
                deadline = time.monotonic() + 100
                while len(list(self.folder.iterdir())) <= self.others:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"fewer than {self.others} other networks began to train")
                    time.sleep(0.05)
        return x

    def _begin(self):
        self.folder.mkdir(exist_ok=True)
        try:
            (self.folder / "first").touch(exist_ok=False)
        except FileExistsError:
            tempfile.mkstemp(dir=self.folder)
            return "later"
        return "first"


def overlapping(pick, widths, delay, begun, others):
    """As `mixed`; the first network to train waits until so many others train, or have been trained."""
    width = pick("width", list(widths))
    layers = nn.Linear(64, width), nn.Dropout(0.1), nn.ReLU(), Behaviour("ok", delay), nn.Linear(width, 10)
    return nn.Sequential(Waits(begun, others), *layers)


class Large(nn.Module):
    """Passes `[B, F]` through where several processes share a network; one alone lacks memory at its 30th step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps += self.training
        if self.steps >= 30 and x.device.type == "cpu" and not torch.distributed.is_initialized():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return x


def large(pick):
    """A small network for digits in rows, and a large one."""
    middle = Large() if pick("large", [False, True]) else nn.Identity()
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), middle, nn.Linear(8, 10))


class Counted(nn.Module):
    """Passes `[B, F]` through, and writes the number of each training step to a file."""

    def __init__(self, file, delay):
        super().__init__()
        self.file = file
        self.delay = delay
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training and x.device.type == "cpu":
            time.sleep(self.delay)
            with open(self.file, "ab", buffering=0) as file:  # noqa: PTH123  # each line is appended at once
                file.write(f"{int(self.steps)}\n".encode())
            self.steps += 1
        return x


def counted(pick, file, delay):
    """A small network for digits in rows, of whose steps a file knows."""
    width = pick("width", [8, 16])
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), Counted(file, delay), nn.Linear(width, 10))


def stages(pick, factor=(1.0, 2.0)):
    """A network whose widths are tensors, as RegNet's are."""
    widths = (torch.linspace(8, 16, pick("depth", [1, 2])) * pick("factor", list(factor))).int().tolist()
    layers = [layer for a, b in zip([64, *widths], widths, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def lazily(pick, widths=(4, 8)):
    """A network for digits as images whose layers get their sizes from them."""
    width = pick("width", list(widths))
    return nn.Sequential(
        nn.LazyConv2d(width, pick("kernel", [3, 5]), bias=False),
        nn.LazyBatchNorm2d(),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


class Unreached(nn.Module):
    """Has a lazy layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.head, self.unused = nn.LazyLinear(10), nn.LazyLinear(6)

    def forward(self, x):
        return self.head(x)


def unreached(pick):
    """Always the same."""
    pick("only", [1, 2])
    return Unreached()


def unseen():
    """Test data: digits with noise."""
    inputs, targets = load_digits(return_X_y=True)
    x = torch.as_tensor(inputs / 16.0, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    return TensorLoader((x + 0.1 * torch.randn(x.shape, generator=generator), torch.as_tensor(targets)), 256)


def broken_in_the_end():
    """Test data that breaks."""
    yield next(iter(unseen()))
    raise ValueError("it breaks in its second batch")


def sizes(pick, widths):
    """Nets for the digits, of one choice of width."""
    width = pick("width", widths)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
