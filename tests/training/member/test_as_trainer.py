"""Modules that rely on what the Trainer does around their steps train as it would train them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nasflow.config.search import EvaluatorConfig
from nasflow.evaluator.candidate import candidate_space
from nasflow.job.spec import trial_dir
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member.average import Average
from nasflow.training.member.trained import load_trained, trained_weights
from nasflow.training.member.trainer.hooks import Hooks
from nasflow.training.member.trainer.trainer_view import give_trainer
from nasflow.training.member_maker import MemberMaker, load_job_data
from tests.training.fused_jobs import fused_and_apart, fused_members, same
from tests.training.interrupted import halves, interrupted, preempted
from tests.training.jobs import HERE, evaluator, evictions, make_job, outcome, train, weights
from tests.training.models.hooked_modules import Counts
from tests.training.models.lightning_modules import Plain
from tests.training.models.trainer_modules import CountsMore
from tests.training.plain_lightning import as_trainer

FILE, KEPT, MENDED = "trainer_modules.py", "kept_modules.py", "mended_modules.py"
COUNTS = {"target": "hooked_modules.py:Counts", "params": {"name": "by the config"}}
TAKEN_BACK = "spaces.py:taken_back"


def module(name: str, how: Any = "", file: str = FILE, **values: Any) -> EvaluatorConfig:
    settings = {"precision": "64-true", "epochs": 3, "data": {"target": "spaces.py:ordered"}, **values}
    return evaluator(kind="lightning", module={"target": f"{file}:{name}", "params": {"how": how}}, **settings)


def goes_on(config: EvaluatorConfig, root: Path, epoch: int = 2) -> None:
    """A job that was interrupted after an epoch ends with the same bits."""
    job = make_job("spaces.py:deep", config, [{}])
    whole = train(job, root / "whole")
    assert not evictions(whole)
    interrupted(job, root / "stopped", 0, epoch)
    again = train(job, root / "stopped")
    assert not evictions(again)
    same(outcome(whole, root / "whole", 0), outcome(again, root / "stopped", 0), 0.0)


@pytest.mark.parametrize(("how", "data"), [("newton", "ordered"), ("sharp", "ordered"), ("sharp, short", "train_only")])
def test_a_batch_begins_and_ends_once_however_often_its_step_is_called(how: str, data: str, tmp_path: Path) -> None:
    as_trainer(module("CallsTwice", how, data={"target": f"spaces.py:{data}"}), tmp_path)


def test_what_is_logged_has_the_weight_of_the_batch_after_its_hooks(tmp_path: Path) -> None:
    as_trainer(module("Repeats"), tmp_path)


@pytest.mark.parametrize("name", ["Accumulates", "Keeps", "EveryThird"])
@pytest.mark.parametrize("data", ["ordered", "train_only"])
def test_gradients_of_several_batches_at_the_end_of_an_epoch(name: str, data: str, tmp_path: Path) -> None:
    """Lightning clears them before a validation, and else keeps them."""
    as_trainer(module(name, data={"target": f"spaces.py:{data}"}), tmp_path)


def test_gradients_where_not_every_epoch_is_validated(tmp_path: Path) -> None:
    as_trainer(module("Accumulates", validate_every=2, epochs=4), tmp_path)


@pytest.mark.parametrize("name", ["Accumulates", "Keeps", "EveryThird"])
@pytest.mark.parametrize("data", ["ordered", "train_only"])
def test_gradients_of_several_batches_go_on(name: str, data: str, tmp_path: Path) -> None:
    goes_on(module(name, data={"target": f"spaces.py:{data}"}), tmp_path, 1)


@pytest.mark.parametrize("name", ["Accumulates", "EveryThird"])
def test_gradients_of_several_batches_go_on_within_an_epoch(name: str, tmp_path: Path) -> None:
    config = module(name, data={"target": TAKEN_BACK, "params": {"marker": str(tmp_path / "marker")}})
    job = make_job("spaces.py:deep", config, [{}], on_preempt=True)
    preempted(job, tmp_path / "twice")
    assert len(halves(tmp_path / "twice")) == 1
    again, whole = train(job, tmp_path / "twice"), train(job, tmp_path / "once")
    assert outcome(again, tmp_path / "twice", 0) == outcome(whole, tmp_path / "once", 0)


def test_steps_in_hooks_are_not_counted(tmp_path: Path) -> None:
    as_trainer(module("StepsInHooks"), tmp_path)


@pytest.mark.parametrize("name", ["Prefixes", "PrefixesDicts", "Writes"])
def test_a_log_of_ones_own(name: str, tmp_path: Path) -> None:
    as_trainer(module(name), tmp_path)


def test_a_log_of_ones_own_with_a_callback_that_logs(tmp_path: Path) -> None:
    as_trainer(module("Prefixes", callbacks=[COUNTS]), tmp_path)


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_a_log_of_ones_own_in_a_unit(fuse: Any, tmp_path: Path) -> None:
    config = module("Prefixes", data={"target": "spaces.py:blobs"})
    events = train(make_job("spaces.py:deep", config, [{}, {}], fuse=fuse), tmp_path)
    assert not evictions(events)
    assert fused_members(events) == ({0, 1} if fuse == "always" else set())
    for trial in (0, 1):
        assert outcome(events, tmp_path, trial).epochs[-1].keys() == {
            "mine/train_loss",
            "mine/val_loss",
            "mine/val_size",
        }


@pytest.mark.parametrize("how", ["", "more"])
def test_a_modules_callback_replaces_that_of_the_config(how: str, tmp_path: Path) -> None:
    as_trainer(module("Replaces", how, callbacks=[COUNTS]), tmp_path)


def test_a_modules_callback_does_not_replace_a_special_one(tmp_path: Path) -> None:
    special = {"target": f"{FILE}:CountsMore", "params": {"name": "by the config"}}
    as_trainer(module("Replaces", callbacks=[special]), tmp_path)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_what_a_module_reads_of_its_optimizers(clip: float | None, tmp_path: Path) -> None:
    as_trainer(module("Looks", gradient_clip_val=clip), tmp_path)


@pytest.mark.parametrize("how", ["setup_optimizers", "trainer", "strategy"])
def test_optimizers_that_are_made_anew_are_refused(how: str, tmp_path: Path) -> None:
    [evicted] = evictions(train(make_job("spaces.py:deep", module("Rebuilds", how), [{}]), tmp_path)).values()
    assert "TrialError: trainer" in evicted.error and "add_param_group" in evicted.error


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("how", ["", "by hand"])
def test_hooks_have_the_precision_of_lightning(how: str, precision: str, tmp_path: Path) -> None:
    as_trainer(module("InPrecision", how, precision=precision), tmp_path)


@pytest.mark.parametrize("epoch", [1, 2])
def test_layers_that_are_trained_later(epoch: int, tmp_path: Path) -> None:
    config = module("Thaws", file=KEPT)
    as_trainer(config, tmp_path / "as")
    goes_on(config, tmp_path, epoch)


def test_members_that_are_built_anew_within_a_step_are_as_before(tmp_path: Path) -> None:
    config = module("FreezesWithin", {"pick": ["", "freezes"]}, KEPT)
    members = {trial: {"module.params.how": how} for trial, how in enumerate(["", "freezes", ""])}
    fused_and_apart("spaces.py:deep", config, tmp_path, members)


def test_a_module_with_a_plain_state_dict_and_its_model_elsewhere(tmp_path: Path) -> None:
    as_trainer(module("Elsewhere", file=KEPT), tmp_path)


def test_a_module_that_changes_what_lightning_saves(tmp_path: Path) -> None:
    goes_on(module("ChangesCheckpoints", file=KEPT), tmp_path)


def test_an_average_of_what_two_optimizers_train() -> None:
    layer = nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for _ in range(2)]
    one, two = Average(0.5), Average(0.5)
    for _ in range(3):
        one.update(optimizers[:1])
        two.update(optimizers)
        with torch.no_grad():
            layer.weight.add_(1)
    assert torch.equal(one.tensors[layer.weight], two.tensors[layer.weight])


def test_an_average_of_weights_that_torchs_optimizers_step(tmp_path: Path) -> None:
    """Which Lightning does not count."""
    found = []
    for how in ("", "torch's"):
        job = make_job("spaces.py:deep", module("Pair", how, file=KEPT, ema={"decay": 0.7}), [{}])
        assert not evictions(train(job, tmp_path / how / "job"))
        found.append(weights(tmp_path / how / "job", 0))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_a_module_knows_its_device_before_it_is_there() -> None:
    """As in Lightning, for its `setup`."""
    inner, gpu = Plain(nn.Linear(1, 1)), torch.device("cuda", 1)
    outer = Plain(inner)
    give_trainer(outer, None, gpu)
    assert outer.device == inner.device == gpu


def test_lazy_layers_of_a_module_that_steps_by_hand(tmp_path: Path) -> None:
    as_trainer(module("LazyByHand", file=KEPT, precision="32-true"), tmp_path, f"{KEPT}:lazy")


@pytest.mark.parametrize("how", ["", "teacher", "fails once", "ends", "callbacks"])
def test_lazy_layers_of_a_module_whose_hooks_need_sizes(how: str, tmp_path: Path) -> None:
    config = module("Lazy", how, MENDED, precision="32-true", callbacks=[COUNTS])
    assert not evictions(train(make_job("spaces.py:deep", config, [{}]), tmp_path))


def test_hooks_of_a_module_with_lazy_layers_are_called_once(tmp_path: Path) -> None:
    config = module("Lazy", str(tmp_path / "made"), MENDED, precision="32-true")
    assert not evictions(train(make_job("spaces.py:deep", config, [{}]), tmp_path))


def test_an_average_of_weights_that_a_hook_steps_after_an_epoch_goes_on(tmp_path: Path) -> None:
    goes_on(module("StepsAfter", file=MENDED, ema={"decay": 0.7}), tmp_path)


def test_an_average_of_what_a_wrapper_of_an_optimizer_steps(tmp_path: Path) -> None:
    goes_on(module("Wraps", file=MENDED, ema={"decay": 0.7}), tmp_path)


def test_steps_in_hooks_of_gradients_are_counted(tmp_path: Path) -> None:
    as_trainer(module("StepsInGradientHooks", file=MENDED), tmp_path)


@pytest.mark.parametrize("name", ["PrefixesByName", "LogsPartially", "Once"])
def test_a_log_that_calls_lightnings(name: str, tmp_path: Path) -> None:
    as_trainer(module(name, file=MENDED), tmp_path)


@pytest.mark.parametrize(
    ("name", "metric"), [("LogsByOriginal", ""), ("LogsTwice", "mine/"), ("LogsFirst", ""), ("LogsByLambda", "")]
)
def test_a_log_that_needs_the_trainer(name: str, metric: str, tmp_path: Path) -> None:
    events = train(make_job("spaces.py:deep", module(name, file=MENDED, callbacks=[COUNTS]), [{}]), tmp_path)
    assert not evictions(events)
    for epoch in outcome(events, tmp_path, 0).epochs:
        assert {f"{metric}train_loss", f"{metric}val_loss"} <= epoch.keys()
        assert len(epoch) == 3


def test_a_log_that_needs_the_trainer_at_times(tmp_path: Path) -> None:
    """What it logs follows from each call alone, so that a trial that is resumed logs the same."""
    job = make_job("spaces.py:deep", module("LogsAtTimes", file=MENDED, epochs=3), [{}])
    interrupted(job, tmp_path / "twice", 0, 1)
    again, whole = train(job, tmp_path / "twice"), train(job, tmp_path / "once")
    assert outcome(again, tmp_path / "twice", 0) == outcome(whole, tmp_path / "once", 0)
    for epoch in outcome(whole, tmp_path / "once", 0).epochs:
        assert {"mine/train_loss", "val_loss"} <= epoch.keys()


def test_what_a_loaded_model_has_is_made_in_the_precision_of_training(tmp_path: Path) -> None:
    job = make_job("spaces.py:deep", module("DrawsLate", file=MENDED), [{}])
    assert not evictions(train(job, tmp_path))
    space = candidate_space(job.space, job.evaluator, HERE, with_values=True)
    held = trained_weights(trial_dir(tmp_path, 0))
    model = load_trained(space, {}, job.members[0].seed, held, base_dir=HERE, paths=HERE)
    assert torch.equal(model.third, torch.ones((), dtype=torch.float64) / 3)


def test_a_hook_that_calls_its_model_in_a_unit(tmp_path: Path) -> None:
    """Which has the precision of hooks, while the step of another has that of steps."""
    config = module("CallsInHooks", {"pick": ["", "calls"]}, MENDED)
    members = {trial: {"module.params.how": how} for trial, how in enumerate(["calls", ""])}
    fused_and_apart("spaces.py:deep", config, tmp_path, members)


@pytest.mark.parametrize("name", ["Guards", "GuardsOnly"])
def test_a_hook_that_reads_optimizers_in_a_checkpoint(name: str, tmp_path: Path) -> None:
    goes_on(module(name, file=MENDED), tmp_path)


def test_callbacks_of_a_checkpoint_from_before_they_were_replaced() -> None:
    theirs, other, mine = Counts("theirs"), CountsMore(), Counts("mine")
    hooks = Hooks(Plain(nn.Linear(1, 1)), [other, mine], [theirs, other])
    state = {"callbacks": [{"count": 1}, {"count": 2}, {"count": 3}], "checkpoint": {}}
    hooks.load_state_dict({"state_dict": {}}, state, lambda _: None, {"optimizer": {}, "schedules": []})
    assert (other.count, mine.count) == (2, 3)


def test_gradients_from_before_the_training_are_not_saved() -> None:
    job = make_job("spaces.py:deep", module("LeavesGradients", file=MENDED), [{}])
    data = load_job_data(job.data, job.base_dir, job.data_seed)
    member = MemberMaker(job, data, make_trainer("64-true")).make(job.members[0], 0)
    member.attach(make_trainer("64-true"), "fit")
    member.start()
    member.start_fit()
    assert member.module.model[0].weight.grad is not None
    assert "gradients" not in member.state_dict()
