"""Recipes with all keys of a ready-made evaluator at once: fused as by themselves, and resumed to the same bits."""

import random
from pathlib import Path

import pytest

from nasflow.job.events import DIFFERS, Planned
from tests.training.fused_jobs import fused_members, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evictions, make_job, outcome, sample, train
from tests.training.unit.recipe_table import Recipe, config_of, recipe, recipes, space_of


def check(one: Recipe, root: Path, epoch: int) -> None:
    """Train members of a recipe fused, one by one, and interrupted after an epoch: the same becomes of each."""
    space, config = space_of(one), config_of(one)
    members = sample(space, config, 3)
    spec = make_job(space, config, members, fuse="always")
    fused, apart = train(spec, root / "fused"), train(make_job(space, config, members), root / "apart")
    assert not evictions(fused) and not evictions(apart), [event.error for event in evictions(fused).values()]
    interrupted(spec, root / "resumed", 1, epoch)
    resumed = train(spec, root / "resumed")
    for trial in range(3):
        whole = outcome(fused, root / "fused", trial)
        same(whole, outcome(apart, root / "apart", trial))
        same(whole, outcome(resumed, root / "resumed", trial), 0.0)
    reasons = {reason for event in fused if isinstance(event, Planned) for reason in event.alone.values()}
    assert not any(DIFFERS in reason or "failed" in reason for reason in reasons), reasons
    assert bool(fused_members(fused)) is (one["mix"] == "none" and one["loss"] != "a user's"), reasons


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_recipe_drawn_at_random(seed: int, tmp_path: Path) -> None:
    drawn = recipe(random.Random(seed))
    assert drawn is not None
    check(drawn, tmp_path, 1)


@pytest.mark.long
def test_any_two_values_together(tmp_path: Path) -> None:
    failed = {}
    for number, one in enumerate(recipes(2)):
        try:
            check(one, tmp_path / str(number), 1 + number % 2)
        except AssertionError as error:
            failed[", ".join(one.values())] = str(error)[:500]
    assert not failed
