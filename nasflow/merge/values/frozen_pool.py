"""Shares the memory of frozen tensors that are equal in many members, so that a frozen trunk is stored once.

A tensor that is written to, as in a forward that keeps an average of weights, gets its own memory by torch's copy on
write.
"""

import weakref
from collections.abc import Hashable

import torch
from torch import nn

from nasflow.merge.trace.signature import tensor_structure
from nasflow.tensors import address


class FrozenPool:
    """The frozen tensors that members share so far."""

    def __init__(self) -> None:
        # of members that have left, nothing is kept
        self._kept: dict[Hashable, list[weakref.ref[torch.Tensor]]] = {}
        self._pooled: list[tuple[weakref.ref[nn.Module], weakref.ref[torch.Tensor]]] = []  # each with its layer

    def share(self, model: nn.Module) -> None:
        """Let the model's frozen parameters, and buffers of layers in eval mode, share memory with equal ones.

        Trained parameters, and buffers that training may change, are left alone. Call it when the model is on its
        device, in its precision, with its state loaded: moving it later would end the sharing, and loading a state
        would write into the others' tensors.
        """
        for module in model.modules():
            own: list[torch.Tensor] = [p for p in module._parameters.values() if p is not None and not p.requires_grad]
            if not module.training and not any(p.requires_grad for p in module.parameters()):
                own += [b for b in module._buffers.values() if b is not None]
            for tensor in own:
                self._share(tensor)
                self._pooled.append((weakref.ref(module), weakref.ref(tensor)))

    def part(self) -> None:
        """Give separate memory to what is no longer frozen: trained parameters, buffers of layers in training mode."""
        frozen = []
        for layer, pooled in self._pooled:
            tensor = pooled()
            if tensor is None:
                continue
            if not _is_thawed(layer(), tensor):
                frozen.append((layer, pooled))
                continue
            for alike in self._kept.values():
                alike[:] = [kept for kept in alike if kept() is not tensor]
            tensor.data = tensor.data.clone()
        self._pooled = frozen

    def _share(self, tensor: torch.Tensor) -> None:
        alike = self._kept.setdefault(tensor_structure(tensor), [])
        known = [(kept, there) for kept in alike if (there := kept()) is not None]
        alike[:] = [kept for kept, _ in known]
        for _, kept in known:
            if address(kept) == address(tensor):
                return
            if torch.equal(kept, tensor):
                tensor.data = torch._lazy_clone(kept.data)
                return
        alike.append(weakref.ref(tensor))


def _is_thawed(layer: nn.Module | None, tensor: torch.Tensor) -> bool:
    if layer is None or not layer.training:
        return tensor.requires_grad
    return tensor.requires_grad or any(tensor is buffer for buffer in layer._buffers.values())
