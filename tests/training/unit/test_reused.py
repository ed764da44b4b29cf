"""Models that use a layer or a parameter more than once train merged as they do alone, whatever kernels run them."""

from pathlib import Path

import pytest
import torch

from nasflow.checkpoint.packing import unpack
from nasflow.config.evaluator.optimizer import OptimizerConfig
from nasflow.job.events import DIFFERS, Event, Planned
from nasflow.training.unit import grouping
from tests.training.chosen_costs import ChosenCosts, RandomCosts
from tests.training.fused_jobs import Apart, fused_and_apart, fused_members
from tests.training.jobs import evaluator, make_job, outcome, sample, train
from tests.training.models import reused_spaces

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
FUSE = ["always", "batched", *(pytest.param(costs, marks=pytest.mark.long) for costs in ("measured", "random"))]


def config(space: str, optimizer: str = "sgd"):
    data = "spaces.py:images" if space in IMAGES else "spaces.py:blobs"
    return evaluator(data={"target": data}, epochs=3, precision="64-true", optimizer={"name": optimizer, "lr": 0.05})


def first_gradients(events: list[Event], root: Path, trial: int) -> list[torch.Tensor]:
    """The gradients of a job of one step: what SGD's momentum is after it."""
    ended = outcome(events, root, trial)
    state = unpack(ended.values, ended.tensors)["fitting"]["optimizer"]["state"]
    return [entry["momentum_buffer"] for _, entry in sorted(state.items())]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Apart:
    return Apart(tmp_path_factory.mktemp("apart"))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("fuse", FUSE)
def test_reused_layers_and_tied_weights(
    space: str, fuse: str, apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if COSTS.get(fuse):
        monkeypatch.setattr(grouping, "CostModel", COSTS[fuse])
    mode = "always" if fuse == "always" else "measured"
    events = fused_and_apart(
        f"reused_spaces.py:{space}", config(space), tmp_path, 6, fuse=mode, all_fused=False, shared=apart
    )
    reasons = [why for event in events if isinstance(event, Planned) for why in event.alone.values()]
    assert not [why for why in reasons if why.startswith(DIFFERS)]
    if fuse in ("always", "batched"):
        assert len(fused_members(events)) > 1 or reasons


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("fuse", FUSE)
def test_the_first_gradients_of_reused_layers_in_float32(
    space: str, fuse: str, apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32 is what native kernels run."""
    if COSTS.get(fuse):
        monkeypatch.setattr(grouping, "CostModel", COSTS[fuse])
    whole = config(space)
    one_step = whole.model_copy(
        update={
            "data": whole.data.model_copy(update={"params": {"batch_size": 64}}),
            "epochs": 1,
            "precision": "32-true",
            "optimizer": OptimizerConfig(name="sgd", lr=0.05, momentum=0.9),
        }
    )
    drawn = dict(enumerate(sample(f"reused_spaces.py:{space}", one_step, 6)))
    mode = "always" if fuse == "always" else "measured"
    events = train(make_job(f"reused_spaces.py:{space}", one_step, drawn, fuse=mode), tmp_path)
    alone, place = apart.train(make_job(f"reused_spaces.py:{space}", one_step, drawn))
    reasons = [why for event in events if isinstance(event, Planned) for why in event.alone.values()]
    assert not [why for why in reasons if why.startswith(DIFFERS)]
    for trial in drawn:
        fused, wanted = first_gradients(events, tmp_path, trial), first_gradients(alone, place, trial)
        largest = max(float(grad.abs().max()) for grad in wanted)
        assert len(fused) == len(wanted) > 0
        for one, other in zip(fused, wanted, strict=True):
            size = max(float(other.abs().max()), 1e-2 * largest)
            assert float((one - other).abs().max()) <= 1e-4 * size
