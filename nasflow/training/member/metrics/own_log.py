"""LightningModules that log in a way of their own."""

import functools
from collections.abc import Callable
from typing import Any

from pytorch_lightning import LightningModule

_LOG = "_log_of_member"


def has_own_log(module: LightningModule) -> bool:
    """Whether a module that no member has yet has a `log` or `log_dict` in the place of Lightning's."""
    kind = LightningModule
    own = ((module.log, kind.log), (module.log_dict, kind.log_dict))
    return any(getattr(method, "__func__", method) is not lightnings for method, lightnings in own)


def is_laid_under(module: LightningModule) -> bool:
    """Whether a member's module has its own `log`."""
    return isinstance(module, _Under)


def lay_under(module: LightningModule, log: Callable[..., None]) -> None:
    """Let a module's own `log` reach this one by `super()`: a class between its own and Lightning's calls it."""
    vars(module)[_LOG] = log
    module.__class__ = _laid_under(type(module))  # type: ignore[arg-type]  # mypy takes the class for unhashable


class _Under(LightningModule):
    """Comes right before LightningModule among the base classes; its `log_dict` is Lightning's, which calls `log`."""

    def log(self, *args: Any, **options: Any) -> None:
        """Log as `LightningModule.log` does."""
        vars(self)[_LOG](*args, **options)


@functools.cache
def _laid_under(kind: type[LightningModule]) -> type[LightningModule]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, _Under), names)
