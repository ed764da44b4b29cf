"""Training and evaluation modes of many modules at once."""

import functools
from collections.abc import Collection, Iterable
from typing import Any

from torch import nn


def frozen_in(module: nn.Module) -> list[str]:
    """Return the names of a module's frozen parameters."""
    if _has_no_frozen(module):  # of most; names take longer, and each member is asked at each checkpoint
        return []
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def _has_no_frozen(module: nn.Module) -> bool:
    if not all(parameter is None or parameter.requires_grad for parameter in module._parameters.values()):
        return False
    return all(part is None or _has_no_frozen(part) for part in module._modules.values())


def freeze_only(module: nn.Module, names: Collection[str] | None) -> None:
    """Freeze the parameters of these names and no others, whatever a hook has changed before; nothing for None."""
    if names is not None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in names)


class EvaluationModes:
    """Puts models into evaluation mode, and each of their modules back into the mode it had."""

    def __init__(self) -> None:
        self._former: list[tuple[nn.Module, bool]] = []

    def enter(self, models: Iterable[nn.Module]) -> None:
        """Put each model into evaluation mode, as `eval()` does, including methods that its modules override."""
        self._former = []
        for model in models:
            modules = list(model.modules())
            self._former += [(module, module.training) for module in modules]
            kinds: set[Any] = set(map(type, modules))
            if all(map(_is_plain, kinds)):
                for module in modules:
                    object.__setattr__(module, "training", False)  # Module.__setattr__ would first look for a parameter
            else:
                model.eval()

    def leave(self) -> None:
        """Restore the modes of all modules that were changed, even if they are no longer part of a model."""
        for module, mode in self._former:
            kind: Any = type(module)
            if _is_plain(kind):
                object.__setattr__(module, "training", mode)
            else:
                module.training = mode
        self._former = []


def has_own_modes(model: nn.Module) -> bool:
    """Whether `train()` or `eval()` of a part of the model may do more than set modes."""
    return not all(map(_is_plain, set(map(type, model.modules()))))


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether such modules keep their mode in a plain attribute."""
    return all(getattr(kind, name) is getattr(nn.Module, name) for name in ("train", "eval", "__setattr__"))
