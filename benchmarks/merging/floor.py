"""The least time that a group could take: only its arithmetic, at the speed of this machine's matrix product."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.merging.group import Group
from benchmarks.merging.plain import Manner, build

_COUNTED = (nn.Linear, nn.Conv2d)


@dataclass(frozen=True)
class Work:
    """The amount of work in a group.

    Attributes:
        model_steps: optimizer steps of all members together.
        flops: floating-point operations of each member's training and validation, by trial.
        traffic: bytes that training moves if nothing stays in a cache: weights, gradients and both moments of Adam read
            and written, inputs and outputs of the counted layers read or written in the three products of each.
    """

    model_steps: int
    flops: dict[int, float]
    traffic: float

    @property
    def total_flops(self) -> float:
        """Floating-point operations of all members."""
        return sum(self.flops.values())


def count_work(group: Group, device: str = "cpu") -> Work:
    """Count by running each member on one training batch."""
    data = group.load()
    assert data.validation is not None
    x, target = next(iter(data.train))
    samples = len(data.train.dataset if hasattr(data.train, "dataset") else data.train.tensors[0])  # type: ignore[attr-defined]
    validated = sum(len(batch[0]) for batch in data.validation)
    steps = len(data.train) * group.epochs  # type: ignore[arg-type]
    flops, traffic = {}, 0.0
    for member in group.members:
        model = build(group.trial(member), Manner(device=device))
        count = _count_step(model, x.to(device), target.to(device))
        flops[member.trial] = group.epochs * (count.training * samples + count.forward * validated) / len(x)
        traffic += steps * count.traffic
    return Work(steps * len(group), flops, traffic)


@dataclass
class _Count:
    forward: float = 0.0
    training: float = 0.0
    traffic: float = 0.0


def _count_step(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> _Count:
    """Count one step: products in the forward pass, for the weights' gradients, and for inputs' gradients if needed.

    Only matrix products and convolutions count (not normalization, activations, pooling or the optimizer).
    """
    count = _Count()

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(module, _COUNTED)
        product = 2.0 * output.numel() * module.weight[0].numel()
        products = 1 + module.weight.requires_grad + inputs[0].requires_grad
        count.forward += product
        count.training += product * products
        count.traffic += products * (inputs[0].numel() + output.numel()) * output.element_size()

    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, _COUNTED)]
    F.cross_entropy(model(x), target)
    for handle in handles:
        handle.remove()
    count.traffic += sum(8.0 * p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return count


def product_speed(device: str = "cpu", dtype: torch.dtype = torch.float32, repeats: int = 3) -> float:
    """Return the operations per second of a product of two square matrices, the best of some repeats."""
    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2.0 * size**3 / _best_seconds(lambda: a @ b, device, repeats)


def copy_speed(device: str, repeats: int = 3) -> float:
    """Return the bytes per second, read and written, of copying a large tensor, the best of some repeats."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.numel() / _best_seconds(lambda: target.copy_(source), device, repeats)


def _best_seconds(action: Callable[[], Any], device: str, repeats: int) -> float:
    best = float("inf")
    action()
    for _ in range(repeats):
        _synchronize(device)
        began = time.perf_counter()
        action()
        _synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
