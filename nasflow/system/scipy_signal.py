"""Puts off the import of `scipy.signal`, which is a fifth of what the import of Lightning takes.

torchmetrics imports it for one name, which few have ever used: `hamming`, which SciPy has moved.
"""

import importlib
import sys
import threading
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_NAME = "scipy.signal"
_USED = {"__path__", "__all__"}  # by `import` of what is in it
_loading = threading.RLock()


class _Later(ModuleType):
    """What `import` finds in place of the module, until something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _USED:  # as `inspect` asks of every module
            raise AttributeError(name)
        return getattr(_load(), name)

    def __dir__(self) -> list[str]:
        return dir(_load())

    def hamming(self, *args: Any, **kwargs: Any) -> Any:
        """As `scipy.signal.windows.hamming`; torchmetrics would put that here."""
        return _load().hamming(*args, **kwargs)


def put_off() -> None:
    """Let `import scipy.signal` take no time; it is imported once something of it is used."""
    if _NAME in sys.modules or (scipy := find_spec("scipy")) is None:
        return
    spec = PathFinder.find_spec(_NAME, scipy.submodule_search_locations)  # `find_spec` would import scipy
    if spec is not None and spec.origin is not None:
        sys.modules[_NAME] = later = _Later(_NAME)
        later.__spec__, later.__file__ = spec, spec.origin  # `find_spec` of others raises without it


def _load() -> Any:
    with _loading:
        if isinstance(sys.modules.get(_NAME), _Later):
            del sys.modules[_NAME]
        module: Any = importlib.import_module(_NAME)
        if not hasattr(module, "hamming"):
            module.hamming = module.windows.hamming
        return module
