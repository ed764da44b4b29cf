"""Compare a member's step in a unit with one of its own model: differences that rounding does not explain."""

import math
from collections.abc import Mapping

import torch

from nasflow.training.unit.member_step import Step

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}  # of a tensor's largest value; 1e-2 for shorter types
_OF_GRADIENTS = 5  # times as much: gradients are sums of many values, any of which rounding may move across a corner
_OF_LARGEST = 1e-2  # times that, of the member's largest gradient: for rounding where the true gradient is zero
_AS_FAR = 10  # times as far as rounding moves the member's own gradients
_AT_MOST = 0.1  # of the largest value: a larger change is not rounding, but for example a backward that draws numbers

_Pairs = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


def unlike_values(own: Step, merged: Step) -> str:
    """Describe a difference in output, loss, random stream or buffers; empty if there is none."""
    if own.output.numel() != merged.output.numel():
        return f"its output has the shape {tuple(merged.output.shape)} instead of {tuple(own.output.shape)}"
    if own.position != merged.position:
        return "its random stream is at another position"
    pairs = {"its output": _outputs(own, merged), "its loss": (own.loss, merged.loss)}
    pairs |= {name: (buffer, merged.buffers[name]) for name, buffer in own.buffers.items()}
    for name, (its, other) in pairs.items():
        if not its.is_floating_point() and not torch.equal(its, other):
            return f"{name} is another"
    pairs = {name: pair for name, pair in pairs.items() if pair[0].is_floating_point()}
    for name, (size, distance) in _sizes(pairs).items():
        if _is_far(distance, max(size, 1.0), pairs[name][0]):
            return f"{name} differs by {distance:.1e}, its largest value is {size:.1e}"
    return ""


def unlike_gradients(own: Step, merged: Step, rounding: Mapping[str, float] | None = None) -> str:
    """Describe a difference in the gradients; empty if there is none.

    Args:
        rounding: how far rounding moves the member's own gradients, by name.
    """
    for name, grad in own.gradients.items():
        if (grad is None) != (merged.gradients[name] is None):
            return f"{name} gets {'a' if grad is None else 'no'} gradient"
    pairs = _gradients(own, merged)
    sizes = _sizes(pairs)
    most = max([size for size, _ in sizes.values()], default=0.0)
    for name, (size, distance) in sizes.items():
        scale = max(size, _OF_LARGEST * most)
        slack = min(_AS_FAR * (rounding or {}).get(name, 0.0), _AT_MOST * scale)
        if _is_far(distance - slack, _OF_GRADIENTS * scale, pairs[name][0]):
            return f"the gradient of {name} differs by {distance:.1e}, its largest value is {size:.1e}"
    return ""


def output_distance(one: Step, other: Step) -> float:
    """Return the largest difference between two outputs of equal size."""
    return next((distance for _, distance in _sizes({"": _outputs(one, other)}).values()), 0.0)


def gradient_distances(one: Step, other: Step) -> dict[str, float]:
    """Return the largest difference of each gradient that both steps have, by name."""
    return {name: distance for name, (_, distance) in _sizes(_gradients(one, other)).items()}


def _outputs(one: Step, other: Step) -> tuple[torch.Tensor, torch.Tensor]:
    return one.output, other.output.reshape(one.output.shape)


def _gradients(one: Step, other: Step) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    pairs = {name: (grad, other.gradients[name]) for name, grad in one.gradients.items()}
    return {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None}


def _sizes(pairs: _Pairs) -> dict[str, tuple[float, float]]:
    """Return the largest value of the first tensor of each pair, and its largest difference from the second."""
    names = [name for name, (own, _) in pairs.items() if own.numel() > 0]
    if not names:
        return {}
    own, merged = [pairs[name][0] for name in names], [pairs[name][1] for name in names]
    norms = [*torch._foreach_norm(own, math.inf), *torch._foreach_norm(torch._foreach_sub(merged, own), math.inf)]
    sizes = torch.stack(norms if len({norm.dtype for norm in norms}) == 1 else [n.double() for n in norms]).tolist()
    return dict(zip(names, zip(sizes, sizes[len(names) :], strict=False), strict=True))


def _is_far(distance: float, scale: float, like: torch.Tensor) -> bool:
    """Whether the distance is more than rounding explains; False if the scale is not finite: nothing to compare."""
    return math.isfinite(scale) and not distance <= _TOLERANCE.get(like.dtype, 1e-2) * scale
