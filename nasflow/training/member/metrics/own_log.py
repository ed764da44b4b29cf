"""LightningModules with another `log` than Lightning's."""

import functools
import logging
from collections.abc import Callable
from inspect import getattr_static
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningModule

_LOG = "_log_of_member"
_NAMES = ("log", "log_dict")
_LIGHTNINGS = LightningModule.log

logger = logging.getLogger(__name__)


def has_own_log(module: LightningModule) -> bool:
    """Whether the class of a module has a `log` or `log_dict` in the place of Lightning's.

    One that a module sets for itself is not called: its copies would log into this module's book.
    """
    return bool(_own_names(module))


def is_laid_under(module: LightningModule) -> bool:
    """Whether a member's module has its own `log`."""
    return _LOG in vars(module)


def lay_under(module: LightningModule, book: Any) -> None:
    """Let a module's own `log` log into a member's book where it calls Lightning's, by `super()` or by name."""
    vars(module)[_LOG] = book.log
    for name in _NAMES:
        vars(module).pop(name, None)
    for name in _own_names(module):
        setattr(module, name, _OwnLog(module, book, name).call)


def _own_names(module: LightningModule) -> list[str]:
    return [name for name in _NAMES if getattr_static(type(module), name) is not getattr(LightningModule, name)]


@functools.wraps(_LIGHTNINGS)
def _log(self: LightningModule, *args: Any, **options: Any) -> None:
    vars(self).get(_LOG, functools.partial(_LIGHTNINGS, self))(*args, **options)


LightningModule.log = _log  # type: ignore[method-assign]  # at once, as modules may keep it from before they log


class _OwnLog:
    """A user's `log` or `log_dict`. Where it needs what only Lightning's Trainer has, the book's is called instead."""

    def __init__(self, module: LightningModule, book: Any, name: str):
        self._book, self._name = book, name
        self._where = f"{type(module).__name__}.{name}"
        self._own: Callable[..., Any] = getattr(module, name)
        self._is_warned = False

    def call(self, *args: Any, **options: Any) -> Any:
        """Log by the user's method. What happens depends on the call alone, so that a resumed trial logs the same."""
        logged = self._book.logged
        try:
            return self._own(*args, **options)
        except (MisconfigurationException, AttributeError) as error:
            if isinstance(error, AttributeError) and not _is_of_none(error):
                raise
            if self._book.logged > logged:
                self._warn(f"what it does after super().log is left out: a trial has no logger ({error})")
                return None
            self._warn(f"Lightning's takes its place ({error}); let it call super().log, and no self.logger")
        return getattr(self._book, self._name)(*args, **options)

    def _warn(self, what: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning("%s: %s", self._where, what)


def _is_of_none(error: AttributeError) -> bool:
    """Whether something was asked for an attribute that is None, as `self.logger` is."""
    return error.obj is None and error.name is not None
