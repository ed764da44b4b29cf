"""A user's LightningModule is trained as Lightning would train it, or refused in a clear sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.config.search import EvaluatorConfig
from nasflow.job.events import Ended, Epoch, Event, Final
from nasflow.job.spec import JobSpec
from nasflow.training.member_maker import make_member
from tests.training.jobs import evaluator, evictions, make_job, train, weights
from tests.training.models.lightning_modules import CONFIGURED
from tests.training.plain_lightning import fitted

ARCHITECTURE = {"classes": 3}


def lightning(name: str, data: str = "ordered", epochs: int = 3, **values: Any) -> EvaluatorConfig:
    module = {"target": f"lightning_modules.py:{name}", "params": values.pop("params", {})}
    return evaluator(kind="lightning", module=module, data={"target": f"spaces.py:{data}"}, epochs=epochs, **values)


def plainly(config: EvaluatorConfig, job: JobSpec, place: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Weights and metrics of a member's module, from the same initial weights, in a Lightning Trainer of its own."""
    module = make_member(job, job.members[place], list).module
    del module.log, module.log_dict  # what a member puts in their place
    trainer = fitted(job, module, [])
    return module.state_dict(), {name: float(value) for name, value in trainer.callback_metrics.items()}


HOW = lightning("Configured", params={"how": {"pick": CONFIGURED}}, gradient_clip_val=0.2, precision="64-true")


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Path, list[Event]]:
    """One job, with a member for each form of `configure_optimizers`."""
    job = make_job("spaces.py:linear", HOW, [{**ARCHITECTURE, "module.params.how": how} for how in CONFIGURED])
    root = tmp_path_factory.mktemp("configured")
    return job, root, train(job, root)


@pytest.mark.parametrize("how", CONFIGURED)
def test_as_plain_lightning(how: str, configured: tuple[JobSpec, Path, list[Event]]) -> None:
    job, root, events = configured
    place = CONFIGURED.index(how)
    expected, metrics = plainly(HOW, job, place)
    found = weights(root, place)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    [final] = [event for event in events if isinstance(event, Final) and event.trial == place]
    assert {name: final.metrics[name] for name in metrics} == pytest.approx(metrics, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("Plain", {}),
        ("Plain", {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}),
        ("Skips", {}),
        ("GrowsInSetup", {"precision": "64-true"}),
    ],
)
def test_clipping_and_skipping_as_plain_lightning(name: str, clip: dict[str, Any], tmp_path: Path) -> None:
    config = lightning(name, **clip)
    job = make_job("spaces.py:linear", config, [ARCHITECTURE])
    expected, _ = plainly(config, job)
    train(job, tmp_path)
    found = weights(tmp_path, 0)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_hooks_and_the_view_of_the_trainer(tmp_path: Path) -> None:
    """With a second member that trains longer, which must not show."""
    config = lightning("Hooked", epochs={"pick": [2, 3]})
    members = {0: {**ARCHITECTURE, "epochs": 2}, 1: {**ARCHITECTURE, "epochs": 3}}
    events = train(make_job("spaces.py:linear", config, members), tmp_path)
    assert not evictions(events)
    first, second = (event.metrics for event in events if isinstance(event, Epoch) and event.trial == 0)
    for epoch, metrics in ((0.0, first), (1.0, second)):
        assert metrics["setup"] == metrics["on_fit_start"] == 1.0
        hooks = ["on_train_epoch_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_train_epoch_end"]
        assert [metrics[hook] for hook in hooks] == [epoch + 1] * 4
        assert (metrics["epoch"], metrics["step"], metrics["epochs"]) == (epoch, 4 * (epoch + 1), 2.0)
        assert (metrics["batches"], metrics["steps"], metrics["val_constant"]) == (4.0, 8.0, 7.0)
        assert 0 < metrics["val_accuracy"] <= 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "TwoOptimizers",
            "TrialError: configure_optimizers gave 2 optimizers; to train with several, set",
        ),
        ("NoOptimizer", "TrialError: configure_optimizers gave NoneType; it should give a torch optimizer"),
        (
            "NoModel",
            "ConfigError: evaluator.module: lightning_modules.py:NoModel does not take these params: ",
        ),
        ("not_a_class", "ConfigError: evaluator.module: lightning_modules.py:not_a_class should be a LightningModule"),
        ("Missing", "ConfigError: target 'lightning_modules.py:Missing': 'lightning_modules.py' has no 'Missing'"),
    ],
)
def test_refused(name: str, said: str, tmp_path: Path) -> None:
    events = train(make_job("spaces.py:linear", lightning(name), [ARCHITECTURE]), tmp_path)
    first_line = evictions(events)[0].error.splitlines()[0]
    assert first_line.startswith(said)
    assert isinstance(events[-1], Ended)


def test_a_monitor_that_was_not_logged_is_named(tmp_path: Path) -> None:
    config = lightning("Configured", "train_only", params={"how": "plateau on val_loss"})
    events = train(make_job("spaces.py:linear", config, [ARCHITECTURE]), tmp_path)
    evicted = evictions(events)[0]
    assert evicted.error.startswith(
        "TrialError: lr_scheduler.monitor: no metric 'val_loss' was logged; there are: rising, train_loss"
    )
    assert evicted.epoch == 1


def test_an_early_stop_on_what_was_not_logged_is_named(tmp_path: Path) -> None:
    config = lightning("Plain", early_stopping={"metric": "val_f1"})
    evicted = evictions(train(make_job("spaces.py:linear", config, [ARCHITECTURE]), tmp_path))[0]
    assert evicted.error.startswith(
        "TrialError: early_stopping.metric: no metric 'val_f1' was logged; there are: train_loss, val_loss"
    )
    assert evicted.epoch == 1


def test_a_custom_evaluator_trains_as_its_module_does(tmp_path: Path) -> None:
    own = evaluator(kind="custom", target="lightning_modules.py:Own", params={"lr": 0.05}, epochs=3)
    train(make_job("spaces.py:linear", own, [ARCHITECTURE]), tmp_path / "own")
    train(make_job("spaces.py:linear", lightning("Plain", "blobs"), [ARCHITECTURE]), tmp_path / "plain")
    own_weights, plain_weights = weights(tmp_path / "own", 0), weights(tmp_path / "plain", 0)
    assert all(torch.equal(own_weights[name], plain_weights[name]) for name in plain_weights)


def test_without_validation_data(tmp_path: Path) -> None:
    events = train(make_job("spaces.py:linear", lightning("Plain", "train_only"), [ARCHITECTURE]), tmp_path)
    [final] = [event for event in events if isinstance(event, Final)]
    assert final.metrics.keys() == {"train_loss", "parameters"}
    assert final.epochs == 3


def test_from_a_loader_of_unknown_length(tmp_path: Path) -> None:
    config = lightning("Plain", "unsized")
    events = train(make_job("spaces.py:linear", config, [ARCHITECTURE]), tmp_path)
    sized = train(make_job("spaces.py:linear", lightning("Plain", "blobs"), [ARCHITECTURE]), tmp_path / "sized")
    metrics = [[event.metrics for event in told if isinstance(event, Epoch)] for told in (events, sized)]
    assert metrics[0] == metrics[1]
