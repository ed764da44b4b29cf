"""Automatic casts of mixed precision."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_casts(device: str) -> AbstractContextManager[object]:
    """Within this, there are no casts on a type of device; a backward there would cast what its forward did not."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def with_casts_of_now(device: str) -> AbstractContextManager[object]:
    """Return a context with the casts on a type of device that there are now, to enter it later."""
    is_on = torch.is_autocast_enabled(device)
    return torch.autocast(device, torch.get_autocast_dtype(device)) if is_on else nullcontext()
