"""One member's model as it is, where merging gains nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from nasflow.autocast import without_casts
from nasflow.merge.tape.region import LossesOf
from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_random, minds_strides
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.layout import channels_last
from nasflow.merge.values.parameter_stacks import LeftError, OwnCode, ParameterStack


class DirectModel:
    """Calls the model, with images channels last on a CPU, where this makes convolutions faster.

    Args:
        model: of the member.
        graph: its graph, or None if it can't be traced; then it gets a copy of each batch, which it may write into.
        stream: the member's random stream.
        own_code: runs the model, given 0 and a function; see `Bench`.

    Attributes:
        has_opaque: whether it may run code of the user's.
    """

    stacks: tuple[ParameterStack, ...] = ()

    def __init__(
        self,
        model: nn.Module,
        graph: Graph | None,
        stream: AbstractContextManager[Any],
        own_code: OwnCode,
    ):
        self._model = model
        self._own_code = own_code
        self.has_opaque = graph is None or graph.has_opaque
        draws = graph is None or any(is_random(node) for node in graph.nodes)
        self._stream = stream if draws else nullcontext()
        self._backward_stream = stream if self.has_opaque else nullcontext()  # entering it takes time
        convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        parameters = list(model.parameters())
        on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
        self._images = convolves and on_cpu and graph is not None and not any(map(_minds, graph.nodes))
        kernels = {module.weight for module in model.modules() if isinstance(module, nn.Conv2d)}
        for parameter in parameters:
            if parameter.ndim == 4:
                last = self._images and parameter in kernels
                layout = torch.channels_last if last else torch.contiguous_format
                parameter.data = parameter.data.contiguous(memory_format=layout)

    def __call__(self, x: torch.Tensor, training: bool, taped: bool | None = None) -> torch.Tensor | None:
        """Return the output as `[1, B, ...]`, or None if the model has failed; `taped` has no effect."""
        if self._images:
            x = channels_last(x)
        try:
            output: torch.Tensor = self._own_code(0, lambda: self._run(x.clone() if self.has_opaque else x))
        except LeftError:
            return None
        return output.unsqueeze(0)

    def backpropagate(self, x: torch.Tensor, losses_of: LossesOf, taped: bool | None = None) -> torch.Tensor | None:
        """Return the loss `[1]` for one batch in training, or None if the model has failed."""
        outputs = self(x, training=True)
        if outputs is None:
            return None
        losses, gradient = losses_of(outputs.detach())
        with self._backward_stream, without_casts(outputs.device.type):
            outputs.backward(gradient)
        return losses

    def _run(self, x: torch.Tensor) -> Any:
        with self._stream:
            return self._model(x)


def _minds(node: Node) -> bool:
    """Whether the node may behave differently for channels-last images."""
    return minds_strides(node) and any(
        isinstance(source.spec, Spec) and len(source.spec.shape) == 4 for source in node.inputs
    )
