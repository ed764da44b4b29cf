"""Dropout whose masks are computed from a seed and a count, so that a captured step draws new ones in each replay."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import ClassVar

import torch
from torch import nn
from torch._jit_internal import is_scripting
from torch.nn import functional as F

_LOW = 0xFFFFFFFF


class CounterDropout(nn.Dropout):
    """`nn.Dropout` that draws from no generator: a mask depends on the layer's seed and on how often it was called.

    So masks of several members can be computed as one, equal to those of each alone, on any device and without asking
    the host. They are other ones than torch's generators give. Within `torch.utils.checkpoint`, which computes them
    again in the backward, and transforms of `torch.func`, it draws as `nn.Dropout` does.

    Attributes:
        stream: `[2]` integers on the layer's device: its seed, and the calls that have drawn. It is not part of the
            `state_dict()`, which stays that of `nn.Dropout`.
    """

    stream: torch.Tensor
    _is_used: ClassVar[bool] = False  # whether this process has any

    @staticmethod
    def put_into(module: nn.Module, seed_of: Callable[[str], int]) -> None:
        """Let all layers of a module draw so that are plain `nn.Dropout`, and drop anything.

        Args:
            seed_of: returns a layer's seed by its name, a number of 63 bits.
        """
        for name, layer in module.named_modules():
            if type(layer) is nn.Dropout and layer.p:
                device = next((p.device for p in module.parameters()), torch.device("cpu"))
                stream = torch.tensor([seed_of(name) | 1, 0], dtype=torch.int64, device=device)
                layer.__class__ = CounterDropout
                layer.register_buffer("stream", stream, persistent=False)
                CounterDropout._is_used = True

    @staticmethod
    def streams_of(module: nn.Module) -> dict[str, torch.Tensor]:
        """Return the streams of a module's layers, by their names."""
        if not CounterDropout._is_used:  # most jobs, and each member is asked at each checkpoint
            return {}
        return {name: layer.stream for name, layer in module.named_modules() if isinstance(layer, CounterDropout)}

    @staticmethod
    def load_streams(module: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
        """Continue from what `streams_of` has returned."""
        for name, stream in CounterDropout.streams_of(module).items():
            if name in saved:
                stream.copy_(saved[name])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As for `nn.Dropout`."""
        if is_scripting():  # by a hook that exports the model
            return F.dropout(input, self.p, self.training, self.inplace)
        if not self.training or not self.p:
            return input
        if is_checkpointed() or torch._C._functorch.peek_interpreter_stack() is not None:
            return super().forward(input)
        keep = 1.0 - float(self.p)
        masks = _masks(self.stream.unsqueeze(0), input.shape, input.dtype, _bound(keep), _scale(keep))
        self.stream[1].add_(1)
        return input.mul_(masks.squeeze(0)) if self.inplace else input * masks.squeeze(0)


def is_checkpointed() -> bool:
    """Whether torch.utils.checkpoint runs the caller, and will again in the backward: it restores generators only."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


class Masks:
    """The masks of several layers, one of each member.

    Args:
        streams: `[n, 2]`, of the layers; drawing moves them.
        rates: the share of elements that is dropped, a layer.
    """

    def __init__(self, streams: torch.Tensor, rates: Sequence[float]):
        self._streams = streams
        keep = [1.0 - float(rate) for rate in rates]
        self._bounds = streams.new_tensor([[_bound(share)] for share in keep])
        self._moves = streams.new_tensor([int(share < 1) for share in keep])
        self._keep = keep
        self._scales: dict[torch.dtype, torch.Tensor] = {}

    def draw(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return masks `[n, *shape]` of 0 and the inverse of the share that is kept, and count the call."""
        if dtype not in self._scales:
            wide = torch.float64 if dtype == torch.float64 else torch.float32  # in which torch multiplies by a number
            scales = torch.tensor([[_scale(share)] for share in self._keep], dtype=wide)
            self._scales[dtype] = scales.to(self._streams.device, dtype)
        masks = _masks(self._streams, shape, dtype, self._bounds, self._scales[dtype])
        self._streams[:, 1].add_(self._moves)
        return masks


def _bound(keep: float) -> int:
    """Return below which number an element is kept."""
    return round(keep * 2**32)


def _scale(keep: float) -> float:
    return 1 / keep if keep else 0.0


@torch.no_grad()
def _masks(
    streams: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    bounds: torch.Tensor | int,
    scales: torch.Tensor | float,
) -> torch.Tensor:
    numbers = _numbers(streams, torch.Size(shape).numel())
    return numbers.lt(bounds).to(dtype).mul_(scales).view(len(streams), *shape)


def _numbers(streams: torch.Tensor, elements: int) -> torch.Tensor:
    """Return 32 random bits for each element of each row of streams, `[n, elements]`.

    This is "squares" (Widynski 2020, https://arxiv.org/abs/2004.06278): four rounds of squaring a 64-bit counter times
    a key. The counter is made of the call and the place of the element; integers wrap around, as torch's do.
    """
    key, call = streams[:, :1], streams[:, 1:]
    x = (torch.arange(elements, device=streams.device) + (call << 32)).mul_(key)
    y = x.clone()
    z = y + key
    for addend in (y, z, y):
        x.mul_(x).add_(addend)
        x = (x << 32).bitwise_or_((x >> 32).bitwise_and_(_LOW))
    return x.mul_(x).add_(z).bitwise_right_shift_(32).bitwise_and_(_LOW)
