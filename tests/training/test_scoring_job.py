"""A job that tests: trained trials are scored on test data, and nothing else of them changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import EvaluatorConfig, Target
from nasflow.errors import ConfigError, InfrastructureError, PreemptedError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.loading.data_source import load_test_data
from nasflow.job.asked_end import ended_when
from nasflow.job.events import Confusion, Ended, Event, Final, Started
from nasflow.training.member.trained import trained_weights, with_weights
from nasflow.training.repeated import parts_of
from nasflow.training.scoring_job import ScoringJob
from tests.training.interrupted import interrupted
from tests.training.jobs import HERE, evaluator, evictions, make_job, outcome, train, trial_dir
from tests.training.models.spaces import unbalanced
from tests.training.models.tested_modules import unseen

UNSEEN = {"target": "tested_modules.py:unseen"}
LINEAR = {"classes": 3}


def on_unseen(
    config: EvaluatorConfig, root: Path, space: str = "spaces.py:linear", architecture: Mapping[str, Any] = LINEAR
) -> list[Event]:
    """Train a trial and test it; the events of the test."""
    job = make_job(space, config, {3: architecture})
    trained = train(job, root)
    assert not evictions(trained)
    before = outcome(trained, root, 3)
    events: list[Event] = []
    ScoringJob(job.model_copy(update={"tests": True}), root, events.append).run()
    assert outcome(trained, root, 3) == before, "the trial is as it was"
    assert [type(event) for event in (events[0], events[-1])] == [Started, Ended]
    return events


def test_a_metric_with_a_buffer_of_its_own(tmp_path: Path) -> None:
    """It is in checkpoints, and a module that goes on from one has no metrics yet."""
    cost = {"name": "cost", "target": "stranger_metrics.py:Cost"}
    config = evaluator(test_data={"target": "tested_modules.py:unseen"}, metrics=[cost], epochs=3)
    assert metrics(on_unseen(config, tmp_path / "tested")).keys() == {"test_loss", "test_cost"}
    job = make_job("spaces.py:linear", config, {3: LINEAR})
    interrupted(job, tmp_path / "on", 3, 2)
    events, whole = train(job, tmp_path / "on"), train(job, tmp_path / "whole")
    assert not evictions(events)
    assert outcome(events, tmp_path / "on", 3) == outcome(whole, tmp_path / "whole", 3)


def metrics(events: list[Event]) -> dict[str, float]:
    [final] = [event for event in events if isinstance(event, Final)]
    assert final.trial == 3
    return final.metrics


@pytest.mark.parametrize("target", ["unseen", "UnseenModule"])
def test_a_ready_made_evaluator(target: str, tmp_path: Path) -> None:
    config = evaluator(test_data={"target": f"tested_modules.py:{target}"}, precision="64-true", metrics=["accuracy"])
    found = metrics(on_unseen(config, tmp_path))
    assert found.keys() == {"test_loss", "test_accuracy"}
    model = candidate_space(Target(target="spaces.py:linear"), config, HERE).build(LINEAR).model
    model = with_weights(model, trained_weights(trial_dir(tmp_path, 3))).eval()
    x, y = unseen().tensors
    logits = model(x.double()).detach()
    assert found["test_loss"] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-12)
    assert found["test_accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()))


def test_the_test_loss_has_the_class_weights_of_the_training_data(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:unbalanced"}, test_data=UNSEEN, class_weights="balanced")
    found = metrics(on_unseen(config, tmp_path))
    model = candidate_space(Target(target="spaces.py:linear"), config, HERE).build(LINEAR).model
    model = with_weights(model, trained_weights(trial_dir(tmp_path, 3))).eval()
    _, labels = unbalanced()[0].tensors
    weights = torch.tensor([len(labels) / (3 * int((labels == each).sum())) for each in range(3)])
    losses = [(len(y), float(F.cross_entropy(model(x).detach(), y, weights))) for x, y in unseen()]
    mean = sum(size * loss for size, loss in losses) / sum(size for size, _ in losses)
    assert found["test_loss"] == pytest.approx(mean, rel=1e-5)


def test_a_module_with_a_test_step(tmp_path: Path) -> None:
    """Its own parameter is as it was trained, its hooks are called, its names are kept."""
    module = {"target": "tested_modules.py:Tests"}
    found = metrics(on_unseen(evaluator(kind="lightning", module=module, test_data=UNSEEN), tmp_path))
    assert found.keys() == {"test_nll", "test_scale", "test_size"}
    assert found["test_size"] == 24
    assert found["test_scale"] != 1.0


@pytest.mark.parametrize("repeats", [1, 2])
def test_what_the_test_step_sees_of_the_trial(repeats: int, tmp_path: Path) -> None:
    module = {"target": "attentive_modules.py:Looks"}
    unseen_data = {"target": "tested_modules.py:UnseenModule"}
    config = evaluator(kind="lightning", module=module, test_data=unseen_data, epochs=3, repeats=repeats)
    found = metrics(on_unseen(config, tmp_path))
    assert found == {"test_epoch": 3.0, "test_step": 12.0, "test_epochs": 3.0, "test_has_data": 1.0}


def test_a_module_without_one(tmp_path: Path) -> None:
    module = {"target": "lightning_modules.py:Hooked"}
    found = metrics(on_unseen(evaluator(kind="lightning", module=module, test_data=UNSEEN), tmp_path))
    assert found.keys() == {"test_loss", "test_accuracy", "test_constant"}


EMA = {"decay": 0.9}
CALLBACKS = [{"target": "pytorch_lightning.callbacks:EMAWeightAveraging", "params": EMA}]


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("average", [{"ema": EMA}, {"callbacks": CALLBACKS}], ids=["ema", "callback"])
@pytest.mark.parametrize("until", [None, 2], ids=["ended", "stopped"])
def test_the_average_of_a_trials_first_member(
    until: int | None, average: dict[str, Any], repeats: int, tmp_path: Path
) -> None:
    same = {"target": "tested_modules.py:validation"}
    options = {"epochs": 3, "stop_after": until, "precision": "64-true", "repeats": repeats}
    found = metrics(on_unseen(evaluator(test_data=same, **options, **average), tmp_path))
    state = CheckpointStore(trial_dir(tmp_path, 3)).load_newest()
    assert state is not None
    last = parts_of(state, repeats)[0]["history"][-1]
    assert found["test_loss"] == pytest.approx(last["val_loss"], rel=1e-12)
    assert found["test_accuracy"] == pytest.approx(last["val_accuracy"])


def test_the_average_of_the_first_fold(tmp_path: Path) -> None:
    """It is what is exported."""
    data = {"target": "spaces.py:train_only"}
    config = evaluator(data=data, folds=2, epochs=2, test_data=UNSEEN, precision="64-true", callbacks=CALLBACKS)
    found = metrics(on_unseen(config, tmp_path))
    model = candidate_space(Target(target="spaces.py:linear"), config, HERE).build(LINEAR).model
    model = with_weights(model, trained_weights(trial_dir(tmp_path, 3))).eval()
    x, y = unseen().tensors
    assert found["test_loss"] == pytest.approx(float(F.cross_entropy(model(x.double()).detach(), y)), rel=1e-12)


def test_lazy_layers_have_their_trained_sizes(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:images"}, test_data={"target": "tested_modules.py:pictures"})
    found = metrics(on_unseen(config, tmp_path, "lazy_spaces.py:images", {"width": 4, "kernel": 3}))
    assert 0 <= found["test_accuracy"] <= 1


def test_a_trial_that_can_not_be_tested_is_named(tmp_path: Path) -> None:
    module = {"target": "tested_modules.py:Tests", "params": {"how": "raise"}}
    events = on_unseen(evaluator(kind="lightning", module=module, test_data=UNSEEN), tmp_path)
    assert evictions(events)[3].error.startswith("TrialError: ValueError: it can't be tested")


def test_a_trial_without_a_checkpoint_is_nobodys_fault(tmp_path: Path) -> None:
    job = make_job("spaces.py:linear", evaluator(test_data=UNSEEN), {3: LINEAR})
    with pytest.raises(InfrastructureError, match="trial 3 can't be tested: there is no checkpoint in "):
        ScoringJob(job.model_copy(update={"tests": True}), tmp_path, print).run()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("pair", "tested_modules.py:pair gave a tuple; it should give a LightningDataModule or a loader"),
        ("UNSEEN", "'tested_modules.py' has no 'UNSEEN'"),
        ("torch", "tested_modules.py:torch is not callable"),
    ],
)
def test_bad_test_data_is_refused(target: str, said: str) -> None:
    config = evaluator(test_data={"target": f"tested_modules.py:{target}"})
    with pytest.raises(ConfigError, match=said):
        load_test_data(config.test_data, HERE)  # type: ignore[arg-type]


def test_params_that_do_not_fit_are_refused() -> None:
    config = evaluator(test_data={"target": "tested_modules.py:unseen", "params": {"size": 3}})
    with pytest.raises(ConfigError, match=r"evaluator\.test_data: .* does not take these params"):
        load_test_data(config.test_data, HERE)  # type: ignore[arg-type]


def test_batches_come_in_the_same_order_each_time(tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = evaluator(test_data={"target": "tested_modules.py:unseen", "params": {"batch_size": 5}})
    assert metrics(on_unseen(config, tmp_path / "one")) == metrics(on_unseen(config, tmp_path / "two"))


def test_the_confusion_matrix(tmp_path: Path) -> None:
    config = evaluator(test_data=UNSEEN, metrics=["accuracy"])
    events = on_unseen(config, tmp_path)
    [confusion] = [event for event in events if isinstance(event, Confusion)]
    model = candidate_space(Target(target="spaces.py:linear"), config, HERE).build(LINEAR).model
    model = with_weights(model, trained_weights(trial_dir(tmp_path, 3))).eval()
    x, y = unseen().tensors
    taken = model(x).argmax(1)
    assert confusion.counts == [[int(((y == a) & (taken == b)).sum()) for b in range(3)] for a in range(3)]
    assert sum(map(sum, confusion.counts)) == len(y)
    right = sum(confusion.counts[each][each] for each in range(3))
    assert metrics(events)["test_accuracy"] == pytest.approx(right / len(y))


def test_a_trial_whose_last_checkpoint_is_damaged_is_not_tested(tmp_path: Path) -> None:
    """The one before has other weights; and nothing is removed."""
    job = make_job("spaces.py:linear", evaluator(test_data=UNSEEN, epochs=2), {3: LINEAR})
    train(job, tmp_path)
    folder = trial_dir(tmp_path, 3)
    (folder / "epoch-0002.safetensors").write_bytes(b"")
    with pytest.raises(InfrastructureError, match=r"the last checkpoint in .* is missing or damaged"):
        ScoringJob(job.model_copy(update={"tests": True}), tmp_path, print).run()
    assert {path.name for path in folder.iterdir()} >= {"epoch-0001.safetensors", "epoch-0002.safetensors"}


def test_a_job_in_the_controller_that_is_asked_to_end_ends_at_its_next_batch(tmp_path: Path) -> None:
    job = make_job("spaces.py:linear", evaluator(test_data=UNSEEN), {3: LINEAR})
    train(job, tmp_path)
    events: list[Event] = []
    with ended_when(lambda: True), pytest.raises(PreemptedError, match="the job was asked to end"):
        ScoringJob(job.model_copy(update={"tests": True}), tmp_path, events.append).run()
    assert [type(event) for event in events] == [Started]
