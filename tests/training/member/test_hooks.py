"""Hooks of LightningModules and of callbacks are called as Lightning calls them, fused or not."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from nasflow.config.search import EvaluatorConfig
from nasflow.job.events import Epoch, Final, Planned
from nasflow.training.member_maker import make_member
from nasflow.training.unit.reasons import ENDS_EPOCH
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train, weights
from tests.training.plain_lightning import fitted

FUSED = ["Watches", "Mixed", "ScalesGradients", "Perturbs", "Schedules", "Remembers", "BringsCallbacks", "Plans"]
APART = {
    "Warms": "it makes its step in a way of its own: optimizer_step",
    "EverySecond": "it makes its step in a way of its own: optimizer_step, optimizer_zero_grad",
    "Clips": "it makes its step in a way of its own: configure_gradient_clipping",
    "ScalesLoss": "it makes its step in a way of its own: backward, on_before_zero_grad",
    "Newton": "LBFGS calls its step several times",
    "Adversaries": "it optimizes manually",
    "ShortEpochs": ENDS_EPOCH,
}
FILE = "hooked_modules.py"
CALLBACKS: dict[str, list[dict[str, Any]]] = {
    "average": [{"target": f"{FILE}:Average", "params": {"decay": 0.7}}],
    "progress": [{"target": f"{FILE}:Counts", "params": {"name": "mine"}}],
    "stop": [{"target": f"{FILE}:Stops"}],
    "early stopping": [
        {
            "target": "pytorch_lightning.callbacks:EarlyStopping",
            "params": {"monitor": "val_loss", "patience": 1, "min_delta": 10.0},
        }
    ],
}


def hooked(name: str, **values: Any) -> EvaluatorConfig:
    file = values.pop("file", FILE)
    params = values.pop("params", {"lr": 0.05})
    settings = {"precision": "64-true", "epochs": 3, "data": {"target": "spaces.py:ordered"}, **values}
    return evaluator(kind="lightning", module={"target": f"{file}:{name}", "params": params}, **settings)


def as_lightning(
    config: EvaluatorConfig,
    root: Path,
    space: str = "spaces.py:linear",
    architecture: Any = MappingProxyType({"classes": 3}),
) -> None:
    """A member ends with the weights and metrics of a Trainer of Lightning's that trains its module."""
    job = make_job(space, config, [architecture])
    member = make_member(job, job.members[0], list)
    del member.module.log, member.module.log_dict  # what a member puts in their place
    with member.rng:
        trainer = fitted(job, member.module, list(member.hooks.callbacks) if config.callbacks else [])
    events = train(job, root)
    assert not evictions(events)
    trained = weights(root, 0)
    expected = member.module.state_dict()
    assert trained.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, trained[name]), name
    [final] = [event for event in events if isinstance(event, Final)]
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert {name: final.metrics.get(name) for name in metrics} == pytest.approx(
        metrics, rel=1e-6
    )  # Lightning sums in single precision


@pytest.mark.parametrize("name", [*FUSED, *(name for name in APART if name != "ShortEpochs")])
def test_a_module_as_plain_lightning(name: str, tmp_path: Path) -> None:
    clip = {"gradient_clip_val": 0.05} if name in ("Clips", "Watches") else {}
    as_lightning(hooked(name, **clip), tmp_path)


@pytest.mark.parametrize("name", list(CALLBACKS))
def test_callbacks_as_plain_lightning(name: str, tmp_path: Path) -> None:
    as_lightning(hooked("Plain", file="lightning_modules.py", callbacks=CALLBACKS[name]), tmp_path)


@pytest.mark.parametrize("name", FUSED)
def test_a_module_is_fused(name: str, tmp_path: Path) -> None:
    config = hooked(name, params={"lr": {"float": [1e-2, 1e-1]}}, data={"target": "spaces.py:blobs"})
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 5)


@pytest.mark.parametrize("kind", ["classification", "lightning"])
@pytest.mark.parametrize("name", list(CALLBACKS))
def test_callbacks_of_fused_members(name: str, kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"callbacks": CALLBACKS[name]}
    config = hooked("Plain", file="lightning_modules.py", data={"target": "spaces.py:blobs"}, **settings)
    if kind == "classification":
        config = evaluator(precision="64-true", epochs=3, **settings)
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 4)


def test_one_that_adds_layers_goes_back_and_hurts_nobody(tmp_path: Path) -> None:
    config = hooked("AddsLayers", params={"how": {"pick": ["never", "1"]}}, data={"target": "spaces.py:blobs"})
    net = {"depth": 1, "width0": 8, "norm": "layer", "activation": "tanh", "dropout": 0.0}
    members = {trial: {**net, "module.params.how": how} for trial, how in enumerate(["never", "1", "never"])}
    space = "fused_spaces.py:mixed"
    events = train(make_job(space, config, members, fuse="always"), tmp_path / "all")
    assert not evictions(events)
    for trial, member in members.items():
        alone = train(make_job(space, config, {trial: member}), tmp_path / f"{trial}")
        same(outcome(events, tmp_path / "all", trial), outcome(alone, tmp_path / f"{trial}", trial))


@pytest.mark.parametrize(("name", "why"), list(APART.items()))
def test_why_a_module_is_not_fused(name: str, why: str, tmp_path: Path) -> None:
    clip = {"gradient_clip_val": 0.05} if name == "Clips" else {}
    config = hooked(name, data={"target": "spaces.py:blobs"}, **clip)
    events = fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 3, all_fused=False)
    reasons = [set(event.alone.values()) for event in events if isinstance(event, Planned)]
    assert reasons[-1] == {why}


def test_an_epoch_that_ends_early(tmp_path: Path) -> None:
    events = train(make_job("spaces.py:linear", hooked("ShortEpochs"), [{"classes": 3}]), tmp_path)
    epochs = [event.metrics["last_index"] for event in events if isinstance(event, Epoch)]
    assert epochs == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize("name", ["Remembers", "Adversaries", "average", "progress"])
def test_an_interrupted_job_goes_on_to_the_same_bits(name: str, fuse: Any, tmp_path: Path) -> None:
    own = name in CALLBACKS
    callbacks = {"callbacks": CALLBACKS[name]} if own else {}
    file = "lightning_modules.py" if own else FILE
    config = hooked("Plain" if own else name, file=file, data={"target": "spaces.py:blobs"}, **callbacks)
    spec = make_job("fused_spaces.py:mixed", config, sample("fused_spaces.py:mixed", config, 3), fuse=fuse)
    assert not evictions(interrupted_as_whole(spec, tmp_path))


def test_a_callback_that_raises_evicts_its_member(tmp_path: Path) -> None:
    """Its params are searched, so that of one member only raises; the others' bits stay."""
    outcomes = {}
    for bad in (-1, 1):
        callbacks = [{"target": f"{FILE}:Raises", "params": {"at": {"pick": [-1, 1]}}}]
        plain = {"file": "lightning_modules.py", "data": {"target": "spaces.py:blobs"}}
        config = hooked("Plain", callbacks=callbacks, **plain)
        drawn = sample("fused_spaces.py:mixed", config, 3)
        members = [{**one, "callbacks.0.params.at": bad if trial == 1 else -1} for trial, one in enumerate(drawn)]
        events = train(make_job("fused_spaces.py:mixed", config, members, fuse="always"), tmp_path / str(bad))
        assert fused_members(events) == {0, 1, 2}
        evicted = {trial: event.error.splitlines()[0] for trial, event in evictions(events).items()}
        assert evicted == ({1: "ValueError: the callback's own fault"} if bad == 1 else {})
        outcomes[bad] = [outcome(events, tmp_path / str(bad), trial) for trial in (0, 2)]
    assert outcomes[-1] == outcomes[1]


@pytest.mark.parametrize("name", ["LeavesGradientsOff", "ByHand"])
def test_gradients_that_are_off_as_plain_lightning(name: str, tmp_path: Path) -> None:
    with torch.enable_grad():  # Lightning leaves them off
        as_lightning(hooked(name, file="resumed_modules.py"), tmp_path)


def test_one_that_fails_with_gradients_off_hurts_nobody(tmp_path: Path) -> None:
    outcomes = {}
    for how in ("", "raises"):
        params = {"how": {"pick": ["", "raises"]}}
        config = hooked("SwitchesGradients", file="resumed_modules.py", params=params, precision="32-true")
        members = [{"module.params.how": each} for each in (how, "", "")]
        events = train(make_job("spaces.py:deep", config, members), tmp_path / f"all{how}")
        assert list(evictions(events)) == ([0] if how else [])
        outcomes[how] = [outcome(events, tmp_path / f"all{how}", trial) for trial in (1, 2)]
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert outcomes[""] == outcomes["raises"]


def test_one_that_leaves_gradients_off_is_alone_with_that(tmp_path: Path) -> None:
    config = hooked("ByHand", file="resumed_modules.py", params={"how": {"pick": ["weights", "optimizer"]}})
    members = [{"module.params.how": how} for how in ("weights", "optimizer")]
    together = train(make_job("spaces.py:deep", config, members), tmp_path / "together")
    for trial, member in enumerate(members):
        alone = train(make_job("spaces.py:deep", config, {trial: member}), tmp_path / f"{trial}")
        assert outcome(together, tmp_path / "together", trial) == outcome(alone, tmp_path / f"{trial}", trial)


def test_layers_that_are_trained_later_as_plain_lightning(tmp_path: Path) -> None:
    """By Lightning's callback for it. A job that is interrupted after the change goes on to the same bits."""
    config = hooked("OnlyTrained", callbacks=[{"target": f"{FILE}:Thaws"}])
    as_lightning(config, tmp_path / "as", "spaces.py:deep", {})
    job = make_job("spaces.py:deep", config, [{}])
    whole = train(job, tmp_path / "whole")
    interrupted(job, tmp_path / "stopped", 0, 2)
    events = train(job, tmp_path / "stopped")
    same(outcome(whole, tmp_path / "whole", 0), outcome(events, tmp_path / "stopped", 0), 0.0)


@pytest.mark.parametrize(
    ("target", "params", "instead"),
    [
        ("StochasticWeightAveraging", {"swa_lrs": 0.1}, "use WeightAveraging instead"),
        ("GradientAccumulationScheduler", {"scheduling": {0: 2}}, "set evaluator.accumulate_grad_batches instead"),
        ("LearningRateFinder", {}, "search evaluator.optimizer.lr instead"),
        ("BatchSizeFinder", {}, "search a param of evaluator.data instead"),
        ("LearningRateMonitor", {}, "log the rate in on_train_epoch_end instead"),
        ("ModelPruning", {"pruning_fn": "l1_unstructured"}, "prune the model that the search has found instead"),
    ],
)
def test_callbacks_of_the_whole_trainer_are_refused(
    target: str, params: dict[str, Any], instead: str, tmp_path: Path
) -> None:
    callbacks = [{"target": f"pytorch_lightning.callbacks:{target}", "params": params}]
    config = hooked("Plain", file="lightning_modules.py", callbacks=callbacks)
    [evicted] = evictions(train(make_job("spaces.py:linear", config, [{"classes": 3}]), tmp_path)).values()
    said = f"ConfigError: evaluator.callbacks.0: pytorch_lightning.callbacks:{target} "
    assert evicted.error.splitlines()[0].startswith(said)
    assert instead in evicted.error


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "BringsAveraging",
            "ConfigError: BringsAveraging.configure_callbacks: StochasticWeightAveraging changes or needs",
        ),
        ("SavesByHand", "TrialError: trainer.save_checkpoint: nasflow saves every trial by itself; leave it out"),
    ],
)
def test_what_a_module_may_not_do(name: str, said: str, tmp_path: Path) -> None:
    [evicted] = evictions(train(make_job("spaces.py:linear", hooked(name), [{"classes": 3}]), tmp_path)).values()
    assert evicted.error.splitlines()[0].startswith(said)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"callbacks": [{"target": f"{FILE}:Saves"}]},
            f"ConfigError: evaluator.callbacks.0: {FILE}:Saves is not needed: nasflow saves every trial",
        ),
        (
            {"callbacks": [{"target": f"{FILE}:Plain", "params": {"model": 1}}]},
            f"ConfigError: evaluator.callbacks.0: {FILE}:Plain gave a Plain; it should give a Callback",
        ),
        (
            {"callbacks": [{"target": f"{FILE}:Counts"}, {"target": f"{FILE}:Counts", "params": {"speed": 3}}]},
            f"ConfigError: evaluator.callbacks.1: {FILE}:Counts does not take these params: ",
        ),
        (
            {"name": "Adversaries", "gradient_clip_val": 0.1},
            "ConfigError: evaluator.gradient_clip_val: Adversaries optimizes manually; call self.clip_gradients",
        ),
    ],
)
def test_refused(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    name = config.pop("name", None)
    made = hooked(name) if name else None
    settings = {"precision": "64-true", **config}
    job = hooked(name, **config) if made else hooked("Plain", file="lightning_modules.py", **settings)
    events = train(make_job("spaces.py:linear", job, [{"classes": 3}]), tmp_path)
    assert evictions(events)[0].error.splitlines()[0].startswith(said)
