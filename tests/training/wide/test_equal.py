"""Several ranks train a trial as one process with the whole batches does."""

from pathlib import Path

import pytest

from nasflow.job.events import Ended, Epoch, Event, Final, Planned
from nasflow.training.scoring_job import ScoringJob
from tests.training.jobs import evaluator, make_job
from tests.training.wide.jobs import SGD, assert_equal, job, own_module, run, solo, state, wide

SCORES = {"metrics": ["accuracy", "f1", "auroc"]}


@pytest.mark.parametrize(("strategy", "devices"), [("ddp", 3), ("fsdp", 2)])
def test_as_one_process(strategy: str, devices: int, tmp_path: Path) -> None:
    spec = wide(strategy, devices, gradient_clip_val=0.5, **SCORES)
    code, events = run(spec, tmp_path / "wide")
    assert code == 0
    planned = next(event for event in events if isinstance(event, Planned))
    assert planned.alone == {0: f"evaluator.parallel trains it on {devices} devices"}
    assert [event.epoch for event in events if isinstance(event, Epoch)] == [1, 2, 3]
    assert any(isinstance(event, Final) for event in events)
    assert_equal(state(tmp_path / "wide"), solo(spec, tmp_path / "solo"))
    pickles = [path for path in tmp_path.rglob("*") if path.suffix in {".pt", ".pkl", ".distcp", ".metadata"}]
    assert not pickles
    assert not list(tmp_path.rglob(".metadata"))


def test_it_is_scored_on_test_data(tmp_path: Path) -> None:
    spec = wide(test_data={"target": "tested_modules.py:unseen"}, **SCORES)
    assert run(spec, tmp_path)[0] == 0
    events: list[Event] = []
    ScoringJob(spec.model_copy(update={"tests": True}), tmp_path, events.append).run()
    (final,) = [event for event in events if isinstance(event, Final)]
    assert final.metrics.keys() == {"test_loss", "test_accuracy", "test_f1", "test_auroc"}


def test_errors_and_r2_of_all_ranks(tmp_path: Path) -> None:
    """Each rank has shifted its sums by its own first target."""
    data = {"target": "fused_spaces.py:numbers"}
    parallel = {"strategy": "ddp", "devices": 2}
    config = evaluator(kind="regression", data=data, epochs=2, precision="64-true", optimizer=SGD, parallel=parallel)
    chosen = {"depth": 1, "width0": 8, "norm": "layer", "activation": "tanh", "dropout": 0.0}
    spec = make_job("fused_spaces.py:valued", config, [chosen])
    assert run(spec, tmp_path / "wide")[0] == 0
    one, other = state(tmp_path / "wide"), solo(spec, tmp_path / "solo")
    assert {"val_rmse", "val_r2"} <= one["history"][-1].keys()
    assert_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "devices", "values"),
    [
        ("ddp", 2, {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "cosine"}}),
        ("ddp", 4, {"accumulate_grad_batches": 2}),
        ("fsdp", 4, {"optimizer": {"name": "adamw", "lr": 0.01}}),
        ("fsdp", 2, {"accumulate_grad_batches": 2}),
        ("ddp", 2, {"data": {"target": "spaces.py:sampled"}}),
        ("fsdp", 3, {"data": {"target": "spaces.py:sampled", "params": {"workers": 1}}}),
        ("ddp", 2, {"space": "unused"}),
        ("fsdp", 2, {"space": "unused"}),
        ("ddp", 2, {"validate_every": 3}),
        ("ddp", 2, {"data": {"target": "spaces.py:blobs", "params": {"batch_size": 1}}, "epochs": 1}),
    ],
)
def test_as_one_process_however_it_is_trained(strategy: str, devices: int, values: dict, tmp_path: Path) -> None:
    spec = wide(strategy, devices, **{**SCORES, **values})
    code, events = run(spec, tmp_path / "wide")
    assert code == 0
    assert events[-1] == Ended(at=events[-1].at)
    assert_equal(state(tmp_path / "wide"), solo(spec, tmp_path / "solo"), 1e-11)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_module_of_the_users_own(strategy: str, tmp_path: Path) -> None:
    spec = wide(strategy, 2, **own_module("Sharding" if strategy == "fsdp" else "Plain"))
    assert run(spec, tmp_path / "wide")[0] == 0
    assert_equal(state(tmp_path / "wide"), solo(spec, tmp_path / "solo"), 1e-11)


@pytest.mark.long
def test_early_stop_is_that_of_one_process(tmp_path: Path) -> None:
    stops = {"metric": "val_loss", "patience": 1, "min_delta": 1e9}
    spec = wide(early_stopping=stops)
    code, events = run(spec, tmp_path / "wide")
    assert code == 0
    (final,) = [event for event in events if isinstance(event, Final)]
    assert (final.epochs, final.stopped_early) == (2, True)
    assert_equal(state(tmp_path / "wide"), solo(job(early_stopping=stops), tmp_path / "solo"))
