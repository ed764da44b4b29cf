"""Steps that pause where they call a part of their model, and go on with an output computed for several at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import nn


@dataclass(frozen=True)
class Call:
    """A call of a part of the model that a step waits for.

    Attributes:
        module: the part.
        x: its only argument, `[B, ...]`.
        grad: whether gradients were enabled there.
        training: whether the part was in training mode.
    """

    module: nn.Module
    x: torch.Tensor
    grad: bool
    training: bool


class InnerBackwardError(Exception):
    """A step runs a backward by itself, as for a penalty on gradients, through outputs that were computed for several.

    The graph of these has other parameters than the member's own.
    """


class PausingStep(greenlet):  # type: ignore[misc]
    """A member's step as a coroutine. `switch` runs it to its next call, which it returns, or to its end.

    A call goes straight to the layer, without a pause, where the output can't come from outside, because something
    that torch keeps for each thread would leak into the other steps: a changed autocast, a dispatch or function mode,
    hooks of saved tensors, a transform of torch.func, inference mode.

    Args:
        run: the step.
        fits: whether a call can be computed for several members at once.
        opens: whether a layer's own methods run step by step, so that the calls in them may pause.

    Attributes:
        opens: as given.
        is_fused: whether it has an output with a gradient that was computed for several.
    """

    def __init__(self, run: Callable[[], Any], fits: Callable[[Call], bool], opens: Callable[[nn.Module], bool]):
        super().__init__(run)
        self.is_fused = False
        self.opens = opens
        self._fits = fits
        self._base = thread_state()

    def call(self, module: nn.Module, proxy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a layer's output. `proxy` takes its place in its forward, if that is opened."""
        if thread_state() != self._base:
            return module(*args, **kwargs)
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor and args[0].layout is torch.strided:
            call = Call(module, args[0], torch.is_grad_enabled(), module.training)
            if self._fits(call):
                assert self.parent is not None  # noqa: S101 - only the main greenlet has none
                output = self.parent.switch(call)
                torch.set_grad_enabled(call.grad)
                self.is_fused |= output.requires_grad
                return output
        if self.opens(module):
            forward: Any = type(module).forward
            return forward(proxy, *args, **kwargs)
        return module(*args, **kwargs)


def _is_fused() -> bool:
    step = getcurrent()
    return isinstance(step, PausingStep) and step.is_fused


@contextmanager
def refusing_inner_backward(
    error: type[Exception] = InnerBackwardError, refuses: Callable[[], bool] = _is_fused
) -> Iterator[None]:
    """Raise an error in a step that runs a backward after it was given an output for several.

    `torch.autograd.grad` and every `backward` call torch's engine by this name, however a user has imported them.
    """
    engine: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if refuses():
            raise error
        return engine(*args, **kwargs)

    torch.autograd._engine_run_backward = guarded  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


def thread_state() -> tuple[Any, ...]:
    """Return what torch keeps for each thread, but for whether gradients are enabled; and the default dtype."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu").type
    return (
        torch.get_default_dtype(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.is_autocast_cache_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
        torch._C._functorch.peek_interpreter_stack() is None,
        torch.autograd.forward_ad._current_level,
    )
