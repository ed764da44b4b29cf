"""A trial with folds: each member is as a trial of its own on its fold, and the trial is their mean."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from nasflow.checkpoint.names import WITHIN
from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.evaluator.training import TrainingConfig
from nasflow.config.search import DataConfig, HalvingPrunerConfig
from nasflow.job.events import Epoch, Event, Final, Planned, Started
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.training.dry_run import rehearse
from nasflow.training.member.trained import trained_weights
from nasflow.training.member_maker import make_member
from nasflow.training.repeated import first_metrics, seeded
from nasflow.training.scoring import score_model
from tests.training.interrupted import interrupted, preempted
from tests.training.jobs import HERE, evaluator, evictions, make_job, outcome, sample, train
from tests.training.models.folded_spaces import tensors
from tests.training.test_repeats import LOSS, finals, state

FOLDS = 3
BLOBS = {"target": "spaces.py:blobs", "params": {"batch_size": 21}}
SETTINGS: dict[str, Any] = {
    "data": BLOBS,
    "epochs": 3,
    "precision": "64-true",
    "optimizer": {"name": "adam", "lr": {"float": [0.01, 0.1]}},
}
STEPWISE = {"accumulate_grad_batches": 2, "schedule": {"name": "cosine", "interval": "step"}}
PLAIN = {"kind": "lightning", "module": {"target": "lightning_modules.py:Plain"}, "precision": "64-true", "epochs": 3}


def job(count: int = 3, fuse: Any = "never", space: str = "spaces.py:net", **values: Any) -> JobSpec:
    settings = values if "kind" in values else SETTINGS | values
    config = evaluator(**{"folds": FOLDS} | settings)
    return make_job(space, config, sample(space, config, count), fuse=fuse)


def apart(spec: JobSpec, fold: int, target: str) -> JobSpec:
    """The members of one fold, each as a trial of its own, on data that were split by others."""
    assert isinstance(spec.evaluator, TrainingConfig)
    data = DataConfig(target=target, params={"part": fold, "of": FOLDS})
    members = [seeded(member, fold) for member in spec.members]
    alone = spec.evaluator.model_copy(update={"folds": None, "data": data})
    return spec.model_copy(update={"evaluator": alone, "members": members, "data": data})


def part_of(root: Path, trial: int, fold: int) -> dict[str, Any]:
    saved = state(root, trial)
    return {"module": saved["module"], **saved["repeats"][fold]}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensors": ("folded_spaces.py:tensors", {}),
    "early": ("folded_spaces.py:tensors", {"epochs": 5, "early_stopping": {"patience": 1, "min_delta": 0.03}}),
    "by steps": ("folded_spaces.py:tensors", STEPWISE),
    "samples": ("folded_spaces.py:samples", {"data": {"target": "folded_spaces.py:whole_samples"}}),
    "some": ("folded_spaces.py:tensors", {"limit_batches": {"train": 2, "validation": 1}}),
    "transferred": (
        "folded_spaces.py:OneTransferAugmented",
        {"data": {"target": "spaces.py:TransferAugmented", "params": {"batch_size": 21}}},
    ),
    "split by itself": (
        "folded_spaces.py:OneTransferAugmented",
        {"data": {"target": "folded_spaces.py:OwnFolds"}},
    ),
    "lightning": ("folded_spaces.py:tensors", {**PLAIN, "data": BLOBS}),
}


@pytest.mark.parametrize("case", CASES)
def test_folds_are_as_trials_of_their_own(case: str, tmp_path: Path) -> None:
    target, values = CASES[case]
    spec = job(2, space="spaces.py:linear" if "kind" in values else "spaces.py:net", **values)
    events = train(spec, tmp_path / "folds")
    own: dict[int, list[list[dict[str, float]]]] = {0: [], 1: []}
    for fold in range(FOLDS):
        root = tmp_path / str(fold)
        assert not evictions(train(apart(spec, fold, target), root))
        for trial, histories in own.items():
            other, mine = state(root, trial), part_of(tmp_path / "folds", trial, fold)
            assert mine["history"] == other["history"]
            assert mine["module"].keys() == other["module"].keys()
            assert all(torch.equal(tensor, other["module"][name]) for name, tensor in mine["module"].items())
            histories.append(other["history"])
    if case == "early":
        assert len({len(history) for histories in own.values() for history in histories}) > 1
    for trial, histories in own.items():
        told = [event.metrics for event in events if isinstance(event, Epoch) and event.trial == trial]
        assert len(told) == max(map(len, histories))
        for epoch, metrics in enumerate(told):
            values_of = [history[min(epoch, len(history) - 1)]["val_loss"] for history in histories]
            assert metrics["val_loss"] == pytest.approx(statistics.fmean(values_of), rel=1e-12)
            assert metrics["val_loss_std"] == pytest.approx(statistics.stdev(values_of), rel=1e-9)


def plainly(spec: JobSpec, trial: int, fold: int) -> tuple[torch.nn.Module, list[float]]:
    """Train on one fold by a loop of plain PyTorch."""
    model: Any = make_member(spec, seeded(spec.members[trial], fold), list).module.model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches, validation = tensors(fold, FOLDS, shuffle=False)
    x_val, y_val = map(torch.cat, zip(*validation, strict=True))
    losses = []
    for _ in range(3):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x.double()), y).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x_val.double()), y_val).item())
    return model, losses


@pytest.mark.parametrize("values", [{}, PLAIN], ids=["ready-made", "lightning"])
def test_merged_as_plain_pytorch(values: dict[str, Any], tmp_path: Path) -> None:
    """Members of one fold are merged with each other. Folds have another number of batches than others."""
    data = {"target": "spaces.py:ordered", "params": {"batch_size": 21}}
    own = {**values, "module": {**PLAIN["module"], "params": {"lr": 0.1}}} if values else {}
    sgd = {} if values else {"optimizer": {"name": "sgd", "momentum": 0.9, "lr": 0.1}}
    spec = job(3, "always", "spaces.py:linear", **{**own, **sgd, "data": data})
    events = train(spec, tmp_path)
    assert not evictions(events)
    [planned] = [event for event in events if isinstance(event, Planned)]
    assert [sorted(unit.members) for unit in planned.units] == [[0, 1, 2]] * FOLDS
    assert len({len(tensors(fold, FOLDS)[0]) for fold in range(FOLDS)}) == 2
    for trial in range(3):
        each = []
        for fold in range(FOLDS):
            model, losses = plainly(spec, trial, fold)
            mine = part_of(tmp_path, trial, fold)
            for name, tensor in model.state_dict().items():
                torch.testing.assert_close(mine["module"][f"model.{name}"], tensor, rtol=0, atol=1e-9)
            assert [metrics["val_loss"] for metrics in mine["history"]] == pytest.approx(losses, abs=1e-9)
            each.append(losses)
        told = [e.metrics["val_loss"] for e in events if isinstance(e, Epoch) and e.trial == trial]
        assert told == pytest.approx([statistics.fmean(of) for of in zip(*each, strict=True)], abs=1e-9)


@pytest.mark.parametrize("case", ["tensors", "early", "by steps", "transferred", "samples"])
def test_fused_as_alone(case: str, tmp_path: Path) -> None:
    values = CASES[case][1]
    assert not evictions(train(job(fuse="always", **values), tmp_path / "fused"))
    train(job(**values), tmp_path / "alone")
    for trial in range(3):
        parts = [state(tmp_path / how, trial)["repeats"] for how in ("fused", "alone")]
        for one, other in zip(*parts, strict=True):
            for a, b in zip(one["history"], other["history"], strict=True):
                assert a == pytest.approx(b, abs=1e-9)


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_interrupted(fuse: Any, tmp_path: Path) -> None:
    spec = job(fuse=fuse, data={"target": "folded_spaces.py:whole_samples"})
    events = train(spec, tmp_path / "once")
    interrupted(spec, tmp_path / "twice", 1, 1)
    again = train(spec, tmp_path / "twice")
    assert next(event for event in again if isinstance(event, Started)).resumed[1] == 1
    for trial in range(3):
        assert outcome(again, tmp_path / "twice", trial) == outcome(events, tmp_path / "once", trial)


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("fuse", ["always", "never"])
def test_preempted_within_an_epoch(fuse: Any, at_the_end: bool, tmp_path: Path) -> None:
    """Also when one of the folds has no more batches."""
    params = {"marker": str(tmp_path / "marker"), "at_the_end": at_the_end}
    spec = job(fuse=fuse, data={"target": "folded_spaces.py:taken_back", "params": params})
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"on_preempt": True})})
    preempted(spec, tmp_path / "twice")
    half = CheckpointStore(trial_dir(tmp_path / "twice", 0), ending=WITHIN).load_newest()
    assert half is not None
    assert [part["within"]["batches"] for part in half["repeats"]] == [2 if at_the_end else 1] * FOLDS
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    assert not evictions(again) and not evictions(whole)
    for trial in range(3):
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


def test_one_fold_fails(tmp_path: Path) -> None:
    """Its trial fails, once, with all its folds; the other trial is as without it."""
    config = evaluator(**SETTINGS, folds=FOLDS)
    good = {"optimizer.lr": 0.01, "after": 6, "training": True, "width": 8, "depth": 1, "dropout": 0.1}
    spec = make_job("spaces.py:faulty", config, [good | {"fault": fault} for fault in ("raise", "none")])
    events = train(spec, tmp_path / "both")
    evicted = evictions(events)
    assert evicted.keys() == {0}
    assert evicted[0].epoch == 2
    assert re.fullmatch(r"fold [23] of 3: ValueError: a layer gave up", evicted[0].error.splitlines()[0])
    alone = train(spec.model_copy(update={"members": spec.members[1:]}), tmp_path / "alone")
    assert outcome(events, tmp_path / "both", 1) == outcome(alone, tmp_path / "alone", 1)


def test_pruned_by_the_mean(tmp_path: Path) -> None:
    spec = job(4, "always").model_copy(update={"pruner": HalvingPrunerConfig(reduction_factor=2), "objectives": LOSS})
    events: list[Event] = train(spec, tmp_path)
    ended = finals(events)
    first = {e.trial: e.metrics["val_loss"] or 0 for e in events if isinstance(e, Epoch) and e.epoch == 1}
    assert {trial for trial, final in ended.items() if final.epochs > 1} == set(
        sorted(first, key=first.__getitem__)[:2]
    )
    for trial, final in ended.items():
        assert {len(part["history"]) for part in state(tmp_path, trial)["repeats"]} == {final.epochs}


def test_an_export_is_of_the_first_fold_and_scored_on_it(tmp_path: Path) -> None:
    spec = job(1, precision="32-true")
    [final] = [event for event in train(spec, tmp_path) if isinstance(event, Final)]
    search = {
        "space": spec.space.model_dump(mode="json"),
        "evaluator": spec.evaluator.model_dump(mode="json"),
        "seed": spec.data_seed,
        "trial_seed": spec.members[0].seed,
    }
    save_file(trained_weights(trial_dir(tmp_path, 0)), tmp_path / "model.safetensors")
    architecture = json.loads(json.dumps(dict(spec.members[0].architecture)))
    scored = score_model(search, architecture, tmp_path / "model.safetensors", HERE)
    expected = first_metrics(trial_dir(tmp_path, 0))
    assert scored == pytest.approx({name: expected[name] for name in scored}, abs=1e-6)
    assert scored["val_loss"] != pytest.approx(final.metrics["val_loss"], abs=1e-6)


def test_a_rehearsal_plans_what_the_job_does(tmp_path: Path) -> None:
    spec = job(fuse="always")
    [event] = [event for event in train(spec, tmp_path) if isinstance(event, Planned)]
    plan = rehearse(spec)
    planned = [sorted(number // plan.repeats for number in unit.members) for unit in plan.units]  # an event has trials
    assert planned == [sorted(unit.members) for unit in event.units]
    assert sorted(number for unit in plan.units for number in unit.members) == list(range(9))
    assert plan.batch == (21, 6) and plan.reasons == event.alone == {}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"folds": 1}, "greater than or equal to 2"),
        ({"folds": 3, "repeats": 2}, "'folds' and 'repeats' can't be combined; each fold has another seed already"),
    ],
)
def test_mistakes_of_the_config(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        evaluator(**values)
