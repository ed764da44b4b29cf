"""Values whose channels lie side by side, as lines of a matrix: `[B, C]`, and images `[B, C, H, W]` channels last."""

from torch import Tensor


def line_of(tensor: Tensor) -> int | None:
    """How far it is from one line of channels to the next; None if they do not lie so.

    The lines may be parts of longer ones, as those of some members' channels are.
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
    """How many lines there are."""
    return tensor.numel() // tensor.shape[1]
