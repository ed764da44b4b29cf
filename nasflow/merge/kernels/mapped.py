"""Runs other layers through `torch.func.vmap`."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_changing, is_random
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench

# vmap has no rules for recurrent layers, and those for embeddings ignore some options
_NOT_MAPPED = (nn.RNNBase, nn.RNNCellBase, nn.Embedding, nn.EmbeddingBag)


class MappedLayer(Kernel):
    """One of torch's deterministic layers, called once with all members' parameters along a mapped dimension."""

    label = "vmap"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        modules: list[Any] = [node.module for node in nodes]
        names = [name for name, _ in modules[0].named_parameters()]
        self._parameters: dict[str, Any] = {
            name: bench.lay([module.get_parameter(name) for module in modules]) for name in names
        }
        self._skeleton = copy.deepcopy(modules[0]).to("meta")

    @classmethod
    def fits(cls, node: Node) -> bool:
        module = node.module
        if module is None or node.opaque or is_random(node) or is_changing(node) or isinstance(module, _NOT_MAPPED):
            return False
        hooked = any(is_hooked(part) for part in module.modules())
        plain = not hooked and next(module.buffers(), None) is None
        return plain and len(node.inputs) == 1 == len(node.args) and not node.kwargs and isinstance(node.spec, Spec)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        def one(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = functional_call(self._skeleton, parameters, (x,))
            return result

        mapped: torch.Tensor = torch.func.vmap(one)(self._parameters, inputs[0])
        return mapped
