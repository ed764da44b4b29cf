"""Automatic casts of mixed precision."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def without_casts(device: str) -> AbstractContextManager[object]:
    """Within this, there are no casts on a type of device; a backward there would cast what its forward did not."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def with_casts_of_now(device: str) -> AbstractContextManager[object]:
    """Return a context with the casts on a type of device that there are now, to enter it later."""
    is_on = torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device)) if is_on else nullcontext()


@contextmanager
def outside_steps(device: str, kind: torch.dtype | None) -> Iterator[None]:
    """Within this, the precision is as outside of steps: no casts on a type of device, and the default dtype `kind`.

    Args:
        kind: None if steps have no other.
    """
    inside = torch.get_default_dtype()
    with without_casts(device):
        if kind is None or kind == inside:
            yield
            return
        torch.set_default_dtype(kind)
        try:
            yield
        finally:
            torch.set_default_dtype(inside)
