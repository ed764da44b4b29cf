"""Adam and AdamW, in one pass over the numbers."""

from collections.abc import Callable

from nasflow.native.library import library


def adam_step() -> Callable[..., None]:
    """Return the C function that makes a step; only where `is_available`.

    Its arguments are addresses of float32 matrices `[rows, size]` (parameters, gradients, means, squares) and of a
    float64 matrix `[rows, 6]` (learning rate, both betas, eps, weight decay and former steps), then rows, size, the
    number of steps to add to the former ones, and 1 for AdamW or 0 for Adam.
    """
    functions = library()
    assert functions is not None  # noqa: S101 - the caller asked `is_available`
    step: Callable[..., None] = functions.nasflow_adam
    return step
