"""What Lightning promises of the order of hooks and of its Trainer, merged and alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.errors import ConfigError
from nasflow.job.events import Epoch, Event, Planned
from nasflow.training.unit.reasons import CHANGES
from tests.training.fused_jobs import fused_and_apart, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evictions, make_job, outcome, sample, train, weights
from tests.training.unit.test_lockstep import lightning

SPACE = "fused_spaces.py:mixed"


def ordered(name: str, **values: Any) -> Any:
    return lightning(name, **{"file": "ordered_modules.py", **values})


def logged(events: list[Event], name: str) -> list[float | None]:
    return [event.metrics[name] for event in events if isinstance(event, Epoch) and event.trial == 0]


@pytest.mark.parametrize("name", ["AveragesByCall", "AveragesBySwap", "TeachesBySwap"])
def test_weights_that_are_swapped_for_a_while(name: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, ordered(name), tmp_path, 4, all_fused=False)


def test_masks_of_infinities_are_no_failure(tmp_path: Path) -> None:
    assert not evictions(fused_and_apart(SPACE, ordered("Masks"), tmp_path, 4))


def test_gradient_hooks_compute_in_the_gradients_precision(tmp_path: Path) -> None:
    config = ordered("ProjectsGradients", precision="bf16-mixed")
    assert not evictions(fused_and_apart(SPACE, config, tmp_path, 3, tolerance=2e-2, all_fused=False))


def test_schedules_step_before_the_end_of_a_batch(tmp_path: Path) -> None:
    config = ordered("LogsRate", params={"lr": {"pick": [0.1]}}, epochs=1)
    events = fused_and_apart(SPACE, config, tmp_path, 3)
    (rate,) = logged(events, "rate")
    assert rate is not None and rate < 0.1 * 0.9 + 1e-9, "as Lightning logs it: the rate of the next batch"


@pytest.mark.parametrize("values", [{}, {"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 2}], ids=str)
@pytest.mark.parametrize("how", ["", "decay", "rms", "adagrad"])
def test_gradients_are_there_at_the_end_of_a_batch(how: str, values: dict[str, Any], tmp_path: Path) -> None:
    """As they were when the optimizer stepped, clipped."""
    config = ordered("LogsGradients", params={"lr": {"float": [1e-3, 1e-2]}, "how": {"pick": [how]}}, **values)
    events = fused_and_apart(SPACE, config, tmp_path, 4)
    assert not evictions(events)


def test_an_epoch_that_is_trained_again_begins_as_it_did(tmp_path: Path) -> None:
    """One member changes what its unit relies on within an epoch, so that all train that again."""
    config = ordered("Collects", params={"how": {"pick": ["", "freezes"]}})
    drawn = sample(SPACE, config, 4)
    members = {n: {**one, "module.params.how": "freezes" if n == 1 else ""} for n, one in enumerate(drawn)}
    events = fused_and_apart(SPACE, config, tmp_path, members, all_fused=False)
    assert CHANGES in [why for event in events if isinstance(event, Planned) for why in event.alone.values()]
    alone = {**drawn[1], "module.params.how": "freezes"}
    one = train(make_job(SPACE, config, {1: alone}), tmp_path / "one")
    same(outcome(events, tmp_path / "fused", 1), outcome(one, tmp_path / "one", 1))


@pytest.mark.parametrize("how", ["own", "lenient"])
def test_schedules_that_go_by_a_metric(how: str, tmp_path: Path) -> None:
    config = ordered("Schedules", params={"lr": {"pick": [1.0]}, "how": {"pick": [how]}}, epochs=4)
    assert not evictions(fused_and_apart(SPACE, config, tmp_path, 3))


def test_a_schedule_that_goes_by_a_metric_of_a_step_is_refused(tmp_path: Path) -> None:
    config = ordered("Schedules", params={"how": {"pick": ["by step"]}})
    events = train(make_job(SPACE, config, sample(SPACE, config, 1)), tmp_path)
    assert (
        "with 'interval' 'step'; a schedule that goes by a metric is stepped after epochs" in evictions(events)[0].error
    )


def test_a_module_that_steps_such_a_schedule_by_itself_may(tmp_path: Path) -> None:
    config = ordered("StepsPlateau", params={"how": {"pick": ["by step"]}})
    assert not evictions(fused_and_apart(SPACE, config, tmp_path, 2, all_fused=False))


def test_a_state_dict_that_a_hook_replaces_is_not_all_that_is_loaded(tmp_path: Path) -> None:
    config = ordered("SavesTrained")
    spec = make_job(SPACE, config, [{**one, "norm": "batch"} for one in sample(SPACE, config, 2)])
    whole = train(spec, tmp_path / "whole")
    before = interrupted(spec, tmp_path / "resumed", 1, 1)
    after = train(spec, tmp_path / "resumed")
    assert not evictions(after)
    for trial in (0, 1):
        same(outcome([*before, *after], tmp_path / "resumed", trial), outcome(whole, tmp_path / "whole", trial), 0.0)


@pytest.mark.parametrize("how", ["", "lenient"])
def test_what_a_module_adds_to_its_checkpoint_is_there_when_it_is_loaded(how: str, tmp_path: Path) -> None:
    config = ordered("SavesHead", params={"how": {"pick": [how]}})
    spec = make_job(SPACE, config, sample(SPACE, config, 2))
    whole = train(spec, tmp_path / "whole")
    before = interrupted(spec, tmp_path / "resumed", 1, 1)
    after = train(spec, tmp_path / "resumed")
    assert not evictions(after)
    assert not [name for name in weights(tmp_path / "resumed", 1) if name.startswith("head.")]
    for trial in (0, 1):
        same(outcome([*before, *after], tmp_path / "resumed", trial), outcome(whole, tmp_path / "whole", trial), 0.0)


def test_its_trainer_has_its_own_model(tmp_path: Path) -> None:
    config = ordered("LooksAtTrainer", validate_every=2, epochs=4)
    events = fused_and_apart(SPACE, config, tmp_path, 3, all_fused=False)
    last = [event.metrics for event in events if isinstance(event, Epoch) and event.trial == 0][-1]
    assert (last["own_model"], last["every"], last["seen"], last["rows"]) == (1.0, 2.0, 1.0, 26.0)


def test_its_trainer_has_no_loader_of_several_folds(tmp_path: Path) -> None:
    config = ordered("LooksAtTrainer", folds=2)
    events = train(make_job(SPACE, config, sample(SPACE, config, 1)), tmp_path)
    assert "trainer.val_dataloaders: each fold has its own" in evictions(events)[0].error


def test_a_callback_changes_the_weights_of_its_own_trial_only(tmp_path: Path) -> None:
    config = lightning("Plain", callbacks=[{"target": "ordered_modules.py:Clamps"}], params={"lr": {"pick": [0.05]}})
    together = sample(SPACE, config, 2)
    events = train(make_job(SPACE, config, together), tmp_path / "two")
    alone = train(make_job(SPACE, config, {0: together[0]}), tmp_path / "one")
    same(outcome(events, tmp_path / "two", 0), outcome(alone, tmp_path / "one", 0))
    trained = [tensor for name, tensor in weights(tmp_path / "two", 0).items() if name.endswith((".weight", ".bias"))]
    assert max(float(tensor.abs().max()) for tensor in trained) <= 0.1


def test_the_jobs_loader_is_refused(tmp_path: Path) -> None:
    config = ordered("AsksForLoader")
    events = train(make_job(SPACE, config, sample(SPACE, config, 1)), tmp_path)
    assert "use trainer.num_training_batches, or trainer.datamodule" in evictions(events)[0].error


def test_an_early_stop_monitors_what_the_last_hook_logs(tmp_path: Path) -> None:
    events = fused_and_apart(SPACE, ordered("LogsAtEnd", epochs=6), tmp_path, 3, all_fused=False)
    assert not evictions(events)
    assert len(logged(events, "late")) == 2


def test_an_early_stop_waits_for_validations(tmp_path: Path) -> None:
    config = ordered("StopsByValidation", validate_every=2, epochs=8)
    events = fused_and_apart(SPACE, config, tmp_path, 3, all_fused=False)
    assert not evictions(events)
    assert max(event.epoch for event in events if isinstance(event, Epoch)) == 4


def test_a_hook_that_is_not_called_is_refused(tmp_path: Path) -> None:
    config = ordered("KeepsDropout")
    events = train(make_job(SPACE, config, sample(SPACE, config, 1)), tmp_path)
    assert "KeepsDropout.on_validation_model_eval is not called" in evictions(events)[0].error


def test_a_data_module_sees_the_pass_over_its_data(tmp_path: Path) -> None:
    """Also where a job goes on in another process."""
    config = lightning("Plain", data={"target": "spaces.py:ByEpoch"}, epochs={"pick": [3, 4]})
    spec = make_job(SPACE, config, sample(SPACE, config, 3))
    whole = train(spec, tmp_path / "whole")
    before = interrupted(spec, tmp_path / "resumed", 1, 2)
    after = train(spec, tmp_path / "resumed")
    for trial in range(3):
        same(outcome([*before, *after], tmp_path / "resumed", trial), outcome(whole, tmp_path / "whole", trial), 0.0)


def test_a_data_module_that_asks_for_all_epochs_is_refused(tmp_path: Path) -> None:
    config = lightning("Plain", data={"target": "spaces.py:ByEpoch", "params": {"asks": True}})
    with pytest.raises(ConfigError, match=r"asks for trainer\.max_epochs, and the trials of a job may have different"):
        train(make_job(SPACE, config, sample(SPACE, config, 1)), tmp_path)


def test_frozen_layers_of_trials_that_have_left_are_not_kept() -> None:
    import gc
    import weakref

    from nasflow.merge.values.frozen_pool import FrozenPool

    pool = FrozenPool()
    models = [torch.nn.Embedding(10, 4).requires_grad_(False) for _ in range(3)]
    for model in models:
        pool.share(model)
    there = [weakref.ref(model.weight) for model in models]
    del model, models[0]
    gc.collect()
    assert [ref() is None for ref in there] == [True, False, False]
    pool.share(torch.nn.Embedding(10, 4).requires_grad_(False))
    pool.part()
