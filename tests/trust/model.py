"""A model as text: the lines of its `__init__` and its `forward`, written one by one while they run."""

import functools
import inspect
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.trust import parts

_NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": F,
    **{name: part for name, part in vars(parts).items() if inspect.isclass(part) and part.__module__ == parts.__name__},
}


@dataclass(frozen=True)
class Program:
    """A model.

    Attributes:
        layers: lines of `__init__`.
        steps: lines of `forward`, with the argument `x`.
        output: the name of the value that it returns.
    """

    layers: tuple[str, ...]
    steps: tuple[str, ...]
    output: str

    @property
    def source(self) -> str:
        """Return the source of the class."""
        layers = "".join(f"        {line}\n" for line in self.layers)
        steps = "".join(f"        {line}\n" for line in self.steps)
        return (
            "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"{layers}\n    def forward(self, x):\n{steps}        return {self.output}\n"
        )

    @property
    def parts(self) -> list[str]:
        """The classes of parts.py that it uses."""
        text = " ".join(self.layers)
        return [name for name in _NAMES if name not in ("torch", "nn", "F") and f"{name}(" in text]


@functools.lru_cache(maxsize=64)
def compiled(source: str) -> type[nn.Module]:
    """Return the class of a program's source; the same for equal sources."""
    space: dict[str, Any] = dict(_NAMES)
    exec(compile(source, "<random model>", "exec"), space)
    model: type[nn.Module] = space["Model"]
    return model


def build(source: str) -> nn.Module:
    """Return the model, with nothing zero that is initialized as zero."""
    model = compiled(source)()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.add_(0.1 * torch.rand(tensor.shape))
    return model


def source_of(part: str) -> str:
    """Return the source of a class of parts.py."""
    return inspect.getsource(_NAMES[part])


@dataclass
class Draft:
    """A model that is being written: every line runs at once, on a batch of two, so that shapes are known.

    Attributes:
        current: the name of the value that the next operation usually reads.
        linears: the layers so far that read vectors: name, inputs and outputs.
        hidden: whether it does what a trace can't see.
    """

    x: torch.Tensor
    layers: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    current: str = "x"
    linears: list[tuple[str, int, int]] = field(default_factory=list)
    hidden: bool = False

    def __post_init__(self) -> None:
        self.model = nn.Module()
        self.values: dict[str, torch.Tensor] = {"x": self.x}

    @property
    def shape(self) -> torch.Size:
        """The shape of the current value."""
        return self.values[self.current].shape

    @property
    def is_float(self) -> bool:
        """Whether the current value is not one of indices."""
        return self.values[self.current].is_floating_point()

    def layer(self, text: str) -> str:
        """Make a layer, or anything else that the model holds; return `self.` and its name."""
        name = f"self.l{len(self.layers)}"
        self.note(f"{name} = {text}")
        return name

    def note(self, line: str) -> None:
        """Add a line to `__init__`."""
        exec(line, {**_NAMES, "self": self.model})
        self.layers.append(line)

    def do(self, line: str) -> None:
        """Add a line to `forward` that makes no new value."""
        exec(line, {**_NAMES, "self": self.model, **self.values})
        self.steps.append(line)

    def step(self, text: str, *, goes_on: bool = True) -> str:
        """Add a line to `forward` that makes a value, by default the current one from now on; return its name."""
        name = f"v{len(self.steps)}"
        self.values[name] = eval(text, {**_NAMES, "self": self.model, **self.values})
        self.steps.append(f"{name} = {text}")
        if goes_on:
            self.current = name
        return name

    def linear(self, outputs: int, bias: bool = True) -> str:
        """Make a linear layer for the current value."""
        inputs = self.shape[-1]
        name = self.layer(f"nn.Linear({inputs}, {outputs}{'' if bias else ', bias=False'})")
        self.linears.append((name, inputs, outputs))
        return name

    def other(self, rng: random.Random) -> str | None:
        """Return an earlier value with the current one's shape, if there is one."""
        alike = [
            name
            for name, value in self.values.items()
            if name != self.current and value.shape == self.shape and value.is_floating_point()
        ]
        return rng.choice(alike) if alike else None

    def program(self) -> Program:
        """Return what was written."""
        return Program(tuple(self.layers), tuple(self.steps), self.current)
