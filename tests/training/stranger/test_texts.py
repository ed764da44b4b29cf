"""Batches of unlike lengths, as padded texts have: members that are merged end as by themselves."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from tests.training.fused_jobs import fused_and_apart
from tests.training.jobs import evaluator
from tests.training.stranger.texts import BODIES

pytestmark = pytest.mark.long

TEXTS = f"{Path(__file__).with_name('texts.py')}"
DATA = {"data": {"target": f"{TEXTS}:batches"}, "precision": "64-true", "optimizer": {"lr": 0.01}}


@pytest.mark.parametrize("bodies", [[body] for body in BODIES] + [list(BODIES)], ids=[*BODIES, "all"])
def test_texts(bodies: list[str], tmp_path: Path) -> None:
    """Units are formed once, whatever lengths follow the first."""
    kinds = [(body, width) for body in bodies for width in (4, 8, 4)]
    members: dict[int, Any] = {trial: {"body": body, "width": width} for trial, (body, width) in enumerate(kinds)}
    events = fused_and_apart(f"{TEXTS}:reader", evaluator(**DATA), tmp_path, members)
    (plan,) = [event for event in events if isinstance(event, Planned)]
    assert [len(unit.members) for unit in plan.units] == [len(members)] and not plan.alone
