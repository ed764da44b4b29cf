"""Merge passes as a user may write them."""

import os
from pathlib import Path

from nasflow.merge.planning.logical_plan import LogicalPlan


def seeing(plan: LogicalPlan) -> None:
    """Looks at the plan."""
    with Path(os.environ["SEEN_BY_A_PASS"]).open("a") as file:
        file.write(f"{len(plan.graphs)} members, {'batched' if plan.batches else 'not batched yet'}\n")


def mixing_up(plan: LogicalPlan) -> None:
    """Gives members each other's outputs."""
    seeing(plan)
    plan.outputs.reverse()


def raising(plan: LogicalPlan) -> None:
    """Fails."""
    seeing(plan)
    raise ValueError("a pass that fails")
