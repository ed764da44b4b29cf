"""Finds where two results differ."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_WIDER = dict.fromkeys(("val_rmse", "val_r2"), 1e-06)  # torchmetrics adds these up in float32


def differences(one: Any, other: Any, tolerance: float, where: str) -> list[str]:
    """Return the places where nested values differ by more than rounding."""
    return list(_differences(one, other, tolerance, where))


def _differences(one: Any, other: Any, tolerance: float, where: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"{where}: {list(one)} together, {list(other)} alone"
        for key in (key for key in one if key in other):
            value = one[key]
            yield from _differences(value, other[key], _WIDER.get(key, tolerance), f"{where}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differences(a, b, tolerance, f"{where}/{index}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"{where}: {one.dtype}{list(one.shape)} together, {other.dtype}{list(other.shape)} alone"
        elif not torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            yield f"{where}: by up to {float((one.double() - other.double()).abs().max()):.2g}"
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) and not (
            math.isnan(one) and math.isnan(other)
        ):
            yield f"{where}: {one} together, {other} alone"
    elif not isinstance(one, type(other)) or one != other:
        yield f"{where}: {_short(one)} together, {_short(other)} alone"


def gradient_differences(
    together: Mapping[str, torch.Tensor | None], alone: Mapping[str, torch.Tensor | None], tolerance: float, where: str
) -> list[str]:
    """Return the parameters with gradients that differ by more than this share of their size."""
    largest = max([float(grad.abs().max()) for grad in alone.values() if grad is not None], default=0.0)
    found = []
    for name, own in alone.items():
        merged = together[name]
        if merged is None or own is None:
            if merged is not own:
                found.append(f"{where} {name}: {'no' if merged is None else 'a'} gradient together")
            continue
        bound = tolerance * max(float(own.abs().max()), 0.1 * largest, 1e-2)
        if not float((merged - own).abs().max()) <= bound:
            found.append(
                f"{where} {name}: gradient by up to {float((merged - own).abs().max()):.2g}, bound {bound:.2g}"
            )
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
