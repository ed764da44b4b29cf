"""The passes that a config names."""

from collections.abc import Iterable
from pathlib import Path

from nasflow.errors import ConfigError
from nasflow.load_target import load_target
from nasflow.merge.planning.logical_plan import Pass


def load_passes(targets: Iterable[str], base_dir: Path) -> list[Pass]:
    """Return the user's own passes. Raises ConfigError for one that can't be imported or called.

    Args:
        targets: import paths, the value of `merge.passes`.
        base_dir: the folder of the user's code.
    """
    passes = []
    for target in targets:
        found = load_target(target, base_dir)
        if not callable(found):
            raise ConfigError(f"merge.passes: {target} is not callable; it should be a function of a LogicalPlan")
        passes.append(found)
    return passes
