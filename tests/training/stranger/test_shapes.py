"""A candidate whose output can't be scored fails by itself, in its first step, and the sentence names the shapes."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Epoch, Event, Final, Planned
from tests.training.jobs import evaluator, evictions, make_job, outcome, train

SHAPES = f"{Path(__file__).with_name('shapes.py')}"
SOUND = {0: 4, 2: 5, 4: 6}  # widths by trial
WRONG = {1: 4, 3: 5, 5: 6, 6: 7}
LOGITS = "classification needs logits [B, C] with C >= 2; the model gives"
SEVERAL = (
    "and 'kind: classification' scores one tensor; let its forward return that tensor, or train it by 'kind: lightni"
)
METRIC = {"name": "kappa", "target": "torchmetrics.classification:MulticlassCohenKappa"}

MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("two", {}, "2 is no class of the model, which has 2, numbered 0 to 1: it gives (16, 2) for targets (16,)"),
    ("one", {}, f"{LOGITS} (16, 1) for targets (16,)"),
    ("flat", {}, f"{LOGITS} (16,) for targets (16,)"),
    ("image", {}, f"{LOGITS} (16, 3, 2, 2) for targets (16,)"),
    ("twice", {}, f"{LOGITS} (32, 3) for targets (16,)"),
    ("tuple", {}, f"the model gives a tuple of 2, {SEVERAL}"),
    ("list", {}, f"the model gives a list of 2, {SEVERAL}"),
    ("dict", {}, f"the model gives a dict with 'logits', 'loss', {SEVERAL}"),
    ("dataclass", {}, f"the model gives a Found, {SEVERAL}"),
    ("model output", {}, f"the model gives a ModelOutput with 'logits', 'hidden_states', {SEVERAL}"),
    ("nothing", {}, f"the model gives None, {SEVERAL}"),
    (
        "logits",
        {"kind": "regression", "data": {"target": f"{SHAPES}:numbers"}},
        "predictions have shape (16, 3), targets (16,)",
    ),
]


def wrong_beside_sound(root: Path, form: str, right: str, fuse: Any, **config: Any) -> list[Event]:
    """Train members with outputs that fit and others with outputs of another form, and those that fit by themselves.

    Returns:
        The events of the job of both, in which the others changed nothing for those that fit.
    """
    members = {trial: {"width": width, "form": right} for trial, width in SOUND.items()}
    alone = train(make_job(f"{SHAPES}:shaped", evaluator(**config), members, fuse=fuse), root / "alone")
    wrong = {trial: {"width": width, "form": form} for trial, width in WRONG.items()}
    both = dict(sorted((members | wrong).items()))
    events = train(make_job(f"{SHAPES}:shaped", evaluator(**config), both, fuse=fuse), root / "both")
    assert not evictions(alone)
    for trial in SOUND:
        assert outcome(events, root / "both", trial) == outcome(alone, root / "alone", trial)
    return events


def failed_at_once(events: list[Event]) -> str:
    """All that did not fit have failed in their first step, for the same reason; nothing was trained again."""
    assert evictions(events).keys() == WRONG.keys()
    assert {event.epoch for event in evictions(events).values()} == {1}
    kinds = [event.kind for event in events]
    assert len([event for event in events if isinstance(event, Planned)]) == 1, "units were formed once"
    assert "evicted" not in kinds[kinds.index("epoch") :], "before the first epoch of the others has ended"
    (said,) = {event.error.splitlines()[0] for event in evictions(events).values()}
    return said


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize(("form", "config", "said"), MISFITS, ids=[f"{form}-{len(c)}" for form, c, _ in MISFITS])
def test_outputs_that_do_not_fit_the_targets(
    form: str, config: dict[str, Any], said: str, *, fuse: Any, tmp_path: Path
) -> None:
    right = "one" if config else "logits"
    assert said in failed_at_once(wrong_beside_sound(tmp_path, form, right, fuse, **config))


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_what_only_validation_would_refuse(fuse: Any, tmp_path: Path) -> None:
    """Torch's loss takes logits for each place of an image; validation does not."""
    dense = {"data": {"target": f"{SHAPES}:dense"}, "metrics": []}
    members = [{"width": width, "form": "image"} for width in (4, 5, 6, 7)]
    events = train(make_job(f"{SHAPES}:shaped", evaluator(**dense), members, fuse=fuse), tmp_path)
    assert evictions(events).keys() == {0, 1, 2, 3} and not [event for event in events if isinstance(event, Epoch)]
    said = {event.error.splitlines()[0] for event in evictions(events).values()}
    assert all(f"{LOGITS} (16, 3, 2, 2) for targets (16, 3, 2, 2)" in each for each in said)


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_a_loss_by_import_path_may_take_several_outputs_in_training(fuse: Any, tmp_path: Path) -> None:
    config = evaluator(loss={"target": f"{SHAPES}:loss_of_both"})
    events = train(make_job(f"{SHAPES}:helped", config, [{"width": 4}, {"width": 5}], fuse=fuse), tmp_path)
    assert not evictions(events)
    assert {event.trial for event in events if isinstance(event, Final)} == {0, 1}
    said = evictions(train(make_job(f"{SHAPES}:helped", evaluator(), [{"width": 4}], fuse=fuse), tmp_path / "named"))
    assert f"the model gives a tuple of 2, {SEVERAL}" in said[0].error


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize("soft", [False, True])
def test_training_may_tell_classes_of_each_place(soft: bool, fuse: Any, tmp_path: Path) -> None:
    """What validation scores is only told by its own batches."""
    config = evaluator(data={"target": f"{SHAPES}:placed", "params": {"soft": soft}}, metrics=["accuracy"])
    events = train(make_job(f"{SHAPES}:placing", config, [{"width": 4}, {"width": 5}], fuse=fuse), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_models_may_take_arrays(fuse: Any, tmp_path: Path) -> None:
    config = evaluator(data={"target": f"{SHAPES}:arrays"})
    events = train(make_job(f"{SHAPES}:of_arrays", config, [{"width": 4}, {"width": 5}], fuse=fuse), tmp_path)
    assert not evictions(events) and len([event for event in events if isinstance(event, Final)]) == 2


def test_more_likely_classes_than_there_are(tmp_path: Path) -> None:
    config = {"metrics": [{"name": "top", "top_k": 4}], "label_smoothing": {"pick": [0.0, 0.1]}}
    members = [{"width": width, "form": "logits", "label_smoothing": 0.0} for width in (4, 5, 6, 7)]
    events = train(make_job(f"{SHAPES}:shaped", evaluator(**config), members, fuse="always"), tmp_path)
    assert {event.epoch for event in evictions(events).values()} == {1}
    assert len([event for event in events if isinstance(event, Planned)]) == 1
    assert all("top_k is 4, and the model tells 3 classes" in event.error for event in evictions(events).values())


def test_a_metric_that_fails_for_all_costs_one_epoch(tmp_path: Path) -> None:
    """They fail in their validation, each for itself, and are not trained again in halves."""
    config = {"metrics": [METRIC | {"params": {"num_classes": 2}}]}
    members = [{"width": width, "form": "logits"} for width in (4, 5, 6, 7)]
    events = train(make_job(f"{SHAPES}:shaped", evaluator(**config), members, fuse="always"), tmp_path)
    assert len(evictions(events)) == 4
    assert len([event for event in events if isinstance(event, Planned)]) == 1


def test_too_few_samples_for_a_metric_cost_one_epoch(tmp_path: Path) -> None:
    data = {"target": "fused_spaces.py:one_number"}
    members = [{"width": width, "form": "one"} for width in (4, 5, 6, 7)]
    config = evaluator(kind="regression", data=data, metrics=["r2"])
    events = train(make_job(f"{SHAPES}:shaped", config, members, fuse="always"), tmp_path)
    assert len(evictions(events)) == 4
    assert all("at least two samples" in event.error for event in evictions(events).values())
    assert len([event for event in events if isinstance(event, Planned)]) == 1


def test_a_batch_of_one_fails_those_with_batch_norm_at_once(tmp_path: Path) -> None:
    """The others, in the same unit, are not split any further."""
    config = evaluator(data={"target": f"{SHAPES}:last_of_one"})
    members = {trial: {"width": 4 + trial % 2, "norm": trial in (1, 2, 5)} for trial in range(8)}
    events = train(make_job(f"{SHAPES}:normed", config, members, fuse="always"), tmp_path / "both")
    assert evictions(events).keys() == {1, 2, 5}
    assert all("Expected more than 1 value per channel" in event.error for event in evictions(events).values())
    plans = [event for event in events if isinstance(event, Planned)]
    assert [sorted(len(unit.members) for unit in plan.units) for plan in plans] == [[8], [5]]
    apart = train(make_job(f"{SHAPES}:normed", config, members), tmp_path / "apart")
    for trial in members.keys() - {1, 2, 5}:
        mine, its = (outcome(e, tmp_path / p, trial) for e, p in ((events, "both"), (apart, "apart")))
        assert mine.final is not None and mine.final.keys() == its.final.keys()  # type: ignore[union-attr]
