"""What the tests of checks share."""

from pathlib import Path
from typing import Any

import psutil

from nasflow.config.search import parse_config
from nasflow.testing.training_service import mentions, running
from nasflow.training_service.check.job import RUNNER
from nasflow.training_service.check.service_check import CheckedService, check_service
from nasflow.training_service.make import make_service

SEARCH = {
    "name": "any",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
}


def check(folder: Path, seconds: float = 60.0, work_dir: str = "runs/deep", **section: Any) -> CheckedService:
    """Check a service, and see that nothing is left of it here."""
    (folder / "code").mkdir(exist_ok=True)
    before = sorted(folder.iterdir())
    search = {**SEARCH, "training_service": section, "work_dir": str(folder / work_dir)}
    config = parse_config(search).model_copy(update={"base_dir": folder / "code"})
    service = config.training_service

    def make(root: Path) -> Any:
        return make_service(service, root, config.base_dir, runner=RUNNER)

    found = check_service(service, config, make, seconds)
    assert sorted(folder.iterdir()) == before
    assert not [each for each in psutil.process_iter() if mentions(each, f"{folder / work_dir}/") and running(each)]
    return found


def only_error(found: CheckedService) -> str:
    """The text of the only error."""
    (error,) = [problem.text for problem in found.problems if problem.level == "error"]
    assert not found.in_order
    return error
