"""One memory for frozen tensors that are equal in many members: a trunk costs its memory once.

It is shared until someone writes into it, as a forward that keeps an average of weights does: who writes gets memory of
its own, by torch's copy on write.
"""

import weakref
from collections.abc import Hashable

import torch
from torch import nn

from nasflow.merge.trace.signature import tensor_structure
from nasflow.tensors import address


class FrozenPool:
    """The frozen tensors of the members that share so far."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[torch.Tensor]] = {}
        self._pooled: list[tuple[weakref.ref[nn.Module], torch.Tensor]] = []  # with the layer of each

    def share(self, model: nn.Module) -> None:
        """Let the model's frozen parameters, and buffers of layers in eval mode, lie where equal ones lie already.

        A parameter that trains is left alone, and so is a buffer that training may change. Call it once the model lies
        on its device in its precision with its state loaded: to move it later would end the sharing, and
        to load it would write into the others'.
        """
        for module in model.modules():
            own: list[torch.Tensor] = [p for p in module._parameters.values() if p is not None and not p.requires_grad]
            if not module.training and not any(p.requires_grad for p in module.parameters()):
                own += [b for b in module._buffers.values() if b is not None]
            for tensor in own:
                self._share(tensor)
                self._pooled.append((weakref.ref(module), tensor))

    def part(self) -> None:
        """Give separate memory to what is no longer frozen: parameters that train now, buffers of layers that do."""
        frozen = []
        for layer, tensor in self._pooled:
            if not _is_thawed(layer(), tensor):
                frozen.append((layer, tensor))
                continue
            for alike in self._kept.values():
                alike[:] = [kept for kept in alike if kept is not tensor]
            tensor.data = tensor.data.clone()
        self._pooled = frozen

    def _share(self, tensor: torch.Tensor) -> None:
        alike = self._kept.setdefault(tensor_structure(tensor), [])
        for kept in alike:
            if address(kept) == address(tensor):
                return
            if torch.equal(kept, tensor):
                tensor.data = torch._lazy_clone(kept.data)
                return
        alike.append(tensor)


def _is_thawed(layer: nn.Module | None, tensor: torch.Tensor) -> bool:
    if layer is None or not layer.training:
        return tensor.requires_grad
    return tensor.requires_grad or any(tensor is buffer for buffer in layer._buffers.values())
