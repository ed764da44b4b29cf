"""Lazy layers: made by a batch of the data, which leaves no trace, before anything asks for their sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nasflow.config.search import Target
from nasflow.evaluator.candidate import candidate_space
from nasflow.job.events import Event, Final
from nasflow.job.spec import JobSpec
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.dry_run import rehearse
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member.rng import RngStream
from nasflow.training.member_maker import MemberMaker, load_job_data
from tests.training.fused_jobs import fused_and_apart
from tests.training.interrupted import interrupted
from tests.training.jobs import BLOBS, HERE, evaluator, evictions, make_job, outcome, sample, train, weights

EXACT: dict[str, Any] = {"precision": "64-true", "data": BLOBS | {"params": {"batch_size": 24}}}
NOISY = {"target": "spaces.py:augmented"}
LR = {"float": [1e-3, 1e-1], "log": True}


def maker_of(spec: JobSpec) -> MemberMaker:
    data = load_job_data(spec.data, spec.base_dir, spec.data_seed)
    return MemberMaker(spec, data, make_trainer(spec.evaluator.precision))


def finals(events: list[Event]) -> dict[int, Final]:
    return {event.trial: event for event in events if isinstance(event, Final)}


@pytest.mark.parametrize("space", ["rows", "images"])
def test_merged_is_solo(space: str, tmp_path: Path) -> None:
    data = {"target": "spaces.py:images"} if space == "images" else BLOBS
    config = evaluator(**EXACT | {"data": data}, optimizer={"name": {"pick": ["sgd", "adamw"]}, "lr": LR})
    fused_and_apart(f"lazy_spaces.py:{space}", config, tmp_path, 6)


def test_fused_interrupted_and_resumed(tmp_path: Path) -> None:
    """With stand-ins for those who have left."""
    config = evaluator(**EXACT, epochs={"int": [1, 4]}, optimizer={"name": "adamw", "lr": LR})
    spec = make_job("lazy_spaces.py:rows", config, sample("lazy_spaces.py:rows", config, 6), fuse="always")
    whole = train(spec, tmp_path / "once")
    assert len({final.epochs for final in finals(whole).values()}) > 1
    interrupted(spec, tmp_path / "twice", trial=5, epoch=1)
    again = train(spec, tmp_path / "twice")
    for trial in range(6):
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


def test_a_member_is_what_plain_pytorch_makes_of_it_without_a_trace() -> None:
    values = {"lazy": True, "width": 4, "depth": 2}
    config = evaluator(data=NOISY)
    spec = make_job("lazy_spaces.py:traced", config, [values])
    member = maker_of(spec).make(spec.members[0], 0)
    stream = RngStream(spec.members[0].seed)
    with stream:
        model = candidate_space(spec.space, config, HERE).build(values).model
        for layer in (nn.Sequential(*model[1][:8]), model[1][-1]):  # the layers without what draws
            layer.eval()(torch.zeros(2, 6 if isinstance(layer, nn.Sequential) else 5))
    made = member.module.model
    assert made.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert repr(member.rng.state_dict()) == repr(stream.state_dict())
    assert (made[0].calls, made[0].seen.item(), made.training) == (0, 0, True)
    assert not lazy_layers(made) and type(made[1][0]) is nn.Linear and made[1][1].num_batches_tracked == 0
    assert member.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("data", [NOISY, {"target": "spaces.py:TransferAugmented"}], ids=["loader", "transfer"])
def test_others_and_company_make_no_difference(data: dict[str, Any], tmp_path: Path) -> None:
    """Nor when they come in while others train, nor in a job that was interrupted."""
    config = evaluator(data=data, epochs=3)
    lazy, plain = {"lazy": True, "width": 4, "depth": 1}, {"lazy": False}
    members = {0: plain, 1: lazy, 2: plain, 3: {**lazy, "depth": 2}}
    spec = make_job("lazy_spaces.py:traced", config, members)
    together = train(spec, tmp_path / "together")
    assert not evictions(together)
    expected = {trial: outcome(together, tmp_path / "together", trial) for trial in members}
    for trial, values in members.items():
        events = train(make_job("lazy_spaces.py:traced", config, {trial: values}), tmp_path / f"{trial}")
        assert outcome(events, tmp_path / f"{trial}", trial) == expected[trial]
    waiting = train(spec.model_copy(update={"places": 1}), tmp_path / "waiting")
    interrupted(spec, tmp_path / "resumed", trial=1, epoch=2)
    resumed = train(spec, tmp_path / "resumed")
    for trial in members:
        assert outcome(waiting, tmp_path / "waiting", trial) == expected[trial]
        assert outcome(resumed, tmp_path / "resumed", trial) == expected[trial]


def test_parameters_are_those_of_the_made_layers(tmp_path: Path) -> None:
    config = evaluator(data={"target": "lazy_spaces.py:doubles"}, precision="64-true")
    members = sample("lazy_spaces.py:rows", config, 4)
    events = train(make_job("lazy_spaces.py:rows", config, members), tmp_path)
    space = candidate_space(Target(target="lazy_spaces.py:rows"), config, HERE)
    for trial, architecture in enumerate(members):
        held = [t for name, t in weights(tmp_path, trial).items() if name.endswith(("weight", "bias"))]
        candidate = space.validate(architecture)
        assert next(candidate.model.parameters()).is_meta
        assert finals(events)[trial].metrics["parameters"] == sum(tensor.numel() for tensor in held)
        assert candidate.parameters == sum(tensor.numel() for tensor in held) > 0


def test_a_layer_out_of_reach_is_its_trials_own_failure(tmp_path: Path) -> None:
    kinds = ["always", "sometimes", "never", "fails"]
    spec = make_job("lazy_spaces.py:reached", evaluator(), [{"kind": kind} for kind in kinds])
    events = train(spec, tmp_path)
    assert evictions(events).keys() == {2, 3} and finals(events).keys() == {0, 1}
    assert "ConfigError: space.target: lazy layer 'model.unused' has no size" in evictions(events)[2].error
    assert "out of bounds" in evictions(events)[3].error
    assert weights(tmp_path, 1)["model.branch.weight"].shape == (6, 6)
    plan = rehearse(spec)
    assert plan.failed.keys() == {2, 3} and "'model.unused'" in plan.failed[2]


def test_a_users_own_module_may_have_lazy_layers(tmp_path: Path) -> None:
    module = {"target": "lazy_spaces.py:Headed"}
    config = evaluator(kind="lightning", module=module, data={"target": "spaces.py:TransferAugmented"})
    spec = make_job("lazy_spaces.py:rows", config, [{"width": 4, "depth": 1}])
    events = train(spec, tmp_path)
    assert not evictions(events)
    assert weights(tmp_path, 0)["head.weight"].shape == (3, 3)
    assert finals(events)[0].metrics["parameters"] == 6 * 4 + 2 * 4 + 4 * 5 + 5 + 5 * 3 + 3
    candidate = candidate_space(spec.space, config, HERE).validate({"width": 4, "depth": 1})
    assert candidate.parameters == finals(events)[0].metrics["parameters"]
