"""Pruners that the tests of the training room name as targets."""

from typing import Any

from nasflow.training.schedule.pruners import Pruner


class Broken(Pruner):
    """Fails by itself."""

    def stop(self, candidates: Any, histories: Any) -> set[int]:
        return {trial for trial in candidates if 1 / 0}
