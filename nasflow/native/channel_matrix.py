"""Tensors as matrices with adjacent channels as lines: `[B, C]`, and images `[B, C, H, W]` channels last."""

from torch import Tensor


def line_of(tensor: Tensor) -> int | None:
    """Return the distance in elements from one line of channels to the next; None for another layout.

    The lines may be parts of longer ones, such as the channels of some members.
    """
    shape, stride = tensor.shape, tensor.stride()
    if len(shape) == 2:
        return stride[0] if stride[1] == 1 or shape[1] == 1 else None
    if len(shape) != 4:
        return None
    (samples, channels, height, width), (of_sample, of_channel, of_row, of_column) = shape, stride
    line = of_column if width > 1 else of_row if height > 1 else of_sample
    fits = (
        line >= channels
        and (of_channel == 1 or channels == 1)
        and (of_row == width * line or height == 1)
        and (of_sample == height * width * line or samples == 1)
    )
    return line if fits else None


def lines_in(tensor: Tensor) -> int:
    """Return the number of lines."""
    return tensor.numel() // tensor.shape[1]
