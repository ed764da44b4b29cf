"""Models that use a layer or a parameter more than once train merged as they do alone, whatever kernels run them."""

from pathlib import Path

import pytest

from nasflow.job.events import DIFFERS, Planned
from nasflow.training.unit import grouping
from tests.training import reused_spaces
from tests.training.chosen_costs import ChosenCosts, RandomCosts
from tests.training.fused_jobs import fused_and_apart, fused_members
from tests.training.jobs import evaluator

IMAGES = ("conv_twice", "image_block_for_all", "scales")
SPACES = sorted(
    name
    for name, made in vars(reused_spaces).items()
    if callable(made)
    and getattr(made, "__module__", "") == reused_spaces.__name__
    and name.islower()
    and name[0] != "_"
)
COSTS = {"measured": None, "batched": ChosenCosts, "random": RandomCosts}


def config(space: str, optimizer: str = "sgd"):
    data = "spaces.py:images" if space in IMAGES else "spaces.py:blobs"
    return evaluator(data={"target": data}, epochs=3, precision="64-true", optimizer={"name": optimizer, "lr": 0.05})


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("fuse", ["always", "measured", "batched", "random"])
def test_reused_layers_and_tied_weights(space: str, fuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if COSTS.get(fuse):
        monkeypatch.setattr(grouping, "CostModel", COSTS[fuse])
    mode = "always" if fuse == "always" else "measured"
    events = fused_and_apart(f"reused_spaces.py:{space}", config(space), tmp_path, 6, fuse=mode, all_fused=False)
    reasons = [why for event in events if isinstance(event, Planned) for why in event.alone.values()]
    assert not [why for why in reasons if why.startswith(DIFFERS)]
    if fuse in ("always", "batched"):
        assert len(fused_members(events)) > 1 or reasons
