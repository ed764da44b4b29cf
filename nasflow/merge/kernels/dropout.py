"""Dropout: each member's mask is the one that it draws alone."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.counter_dropout import CounterDropout, Masks
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_dropout
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench


class BatchedDropout(Kernel):
    """Masks drawn member by member, as torch draws them on the CPU; one product for all."""

    label = "dropout"
    devices = frozenset({"cpu"})

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._frozen = not nodes[0].module.training  # type: ignore[union-attr]
        self._keep = [1.0 - float(node.module.p) for node in nodes]  # type: ignore[union-attr, arg-type]
        self._drops = any(keep < 1 for keep in self._keep)
        self._spec: Spec = nodes[0].inputs[0].spec

    @classmethod
    def fits(cls, node: Node) -> bool:
        return is_dropout(node)

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        return ("dropout", node.spec, node.module.training)  # type: ignore[union-attr]

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        x: torch.Tensor = inputs[0]
        if not training or self._frozen or not self._drops:
            return x
        order = [0, *(1 + dim for dim in self._spec.order)] if self._spec.order else range(x.ndim)
        mask = torch.empty([x.shape[dim] for dim in order], dtype=x.dtype)
        for row, (keep, member) in enumerate(zip(self._keep, self.bench.members, strict=True)):
            if 0 < keep < 1:
                mask[row].bernoulli_(keep, generator=self.bench.generators[member]).div_(keep)
            else:  # torch draws nothing if it drops nothing, or everything
                mask[row].fill_(keep)
        return x * (mask.permute(0, *(1 + place for place in self._spec.places)) if self._spec.order else mask)


class CountedDropout(Kernel):
    """Masks of `CounterDropout`, computed for all members at once."""

    label = "dropout by counters"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layers: list[CounterDropout] = [node.module for node in nodes]  # type: ignore[misc]
        self._drops = layers[0].training and any(layer.p for layer in layers)
        streams = self.bench.lay([layer.stream for layer in layers])
        assert streams is not None  # noqa: S101 - each layer has one
        self._masks = Masks(streams, [layer.p for layer in layers])

    @classmethod
    def fits(cls, node: Node) -> bool:
        return type(node.module) is CounterDropout and not is_hooked(node.module)

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        return ("dropout by counters", node.spec, node.module.training)  # type: ignore[union-attr]

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        x: torch.Tensor = inputs[0]
        return x * self._masks.draw(x.shape[1:], x.dtype) if training and self._drops else x
