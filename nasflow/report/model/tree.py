"""A model's modules as a plain tree, in which equal neighbours are one block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Block:
    """A module, or several equal ones in a row.

    Attributes:
        name: name in the parent module; of equal neighbours, the first and the last name.
        kind: name of the class.
        detail: the class's own description (`extra_repr`).
        parameters: number of parameters of one module, including those of its children.
        times: number of equal modules in a row.
    """

    name: str
    kind: str
    detail: str
    parameters: int
    children: tuple["Block", ...] = ()
    times: int = 1


def model_outline(model: "nn.Module", name: str = "model") -> Block:
    """Return the tree of a model's modules, in the order of their registration."""
    from nasflow.space.lazy_layers import count_parameters  # noqa: PLC0415 - slow

    children = tuple(model_outline(child, label) for label, child in model.named_children())
    return Block(
        name=name,
        kind=type(model).__name__,
        detail=" ".join(model.extra_repr().split()),
        parameters=count_parameters(model),
        children=tuple(_folded(children)),
    )


def _folded(blocks: Sequence[Block]) -> Iterator[Block]:
    for _, group in groupby(blocks, key=_without_name):
        first, *others = group
        yield replace(first, name=f"{first.name} … {others[-1].name}", times=1 + len(others)) if others else first


def _without_name(block: Block) -> Block:
    return replace(block, name="", children=tuple(map(_without_name, block.children)))
