"""Steps that pause where they call their model, and go on with an output that was computed for several at once."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from pytorch_lightning import LightningModule
from torch import nn

MODEL = "model"
"""The attribute of a LightningModule that holds the candidate's model."""


@dataclass(frozen=True)
class Call:
    """A call of the model that a step waits for.

    Attributes:
        x: its only argument, `[B, ...]`.
        grad: whether gradients were enabled there.
        training: whether the model was in training mode.
    """

    x: torch.Tensor
    grad: bool
    training: bool


class InnerBackwardError(Exception):
    """A step runs a backward by itself, as for a penalty on gradients, through outputs that were computed for several.

    The graph of these has other parameters than the member's own.
    """


class PausingStep(greenlet):  # type: ignore[misc]
    """A member's step as a coroutine. `switch` runs it to its next call, which it returns, or to its end.

    A call goes straight to the model, without a pause, where the output can't come from outside, because something
    that torch keeps for each thread would leak into the other steps: a changed autocast, a dispatch or function mode,
    hooks of saved tensors, a transform of torch.func, inference mode.

    Args:
        run: the step.
        fits: whether a call can be computed for several members at once.
    """

    def __init__(self, run: Callable[[], Any], fits: Callable[[Call], bool]):
        super().__init__(run)
        self.is_fused = False  # whether it has an output with a gradient that was computed for several
        self._fits = fits
        self._base = thread_state()

    def call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the model's output."""
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor and args[0].layout is torch.strided:
            call = Call(args[0], torch.is_grad_enabled(), model.training)
            if thread_state() == self._base and self._fits(call):
                assert self.parent is not None  # noqa: S101 - only the main greenlet has none
                output = self.parent.switch(call)
                torch.set_grad_enabled(call.grad)
                self.is_fused |= output.requires_grad
                return output
        return model(*args, **kwargs)


class ModelProxy:
    """A model in all but its calls, which a `PausingStep` answers; outside of one, the model itself does."""

    def __init__(self, model: nn.Module):
        object.__setattr__(self, "_proxied", model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the model."""
        step = getcurrent()
        if isinstance(step, PausingStep):
            return step.call(self._proxied, args, kwargs)
        return self._proxied(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._proxied)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxied, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._proxied, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._proxied, name)

    def __dir__(self) -> list[str]:
        return dir(self._proxied)

    def __repr__(self) -> str:
        return repr(self._proxied)

    def __len__(self) -> int:
        return len(self._proxied)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._proxied)

    def __getitem__(self, key: Any) -> Any:
        return self._proxied[key]

    def __eq__(self, other: object) -> bool:
        return bool(self._proxied is other or (isinstance(other, ModelProxy) and self._proxied is other._proxied))

    def __hash__(self) -> int:
        return hash(self._proxied)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._proxied, memo)

    def __copy__(self) -> Any:
        return copy.copy(self._proxied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._proxied.__reduce_ex__(protocol)


@contextmanager
def proxied(module: LightningModule, model: nn.Module) -> Iterator[None]:
    """Put a proxy before the module's model. Parameters, state dict and their names stay: it is in `__dict__` only."""
    if module._modules.get(MODEL) is not model:  # its own code has put another in its place
        yield
        return
    module.__dict__[MODEL] = ModelProxy(model)
    try:
        yield
    finally:
        module.__dict__.pop(MODEL, None)


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
    """Return what torch keeps for each thread, but for whether gradients are enabled."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu").type
    return (
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
