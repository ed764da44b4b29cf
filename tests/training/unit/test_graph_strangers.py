"""Models and recipes of strangers in steps that are captured and replayed, with dropout by counters."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from nasflow.job.events import Event, Planned
from nasflow.job.spec import JobSpec
from nasflow.merge.trace.counter_dropout import CounterDropout
from nasflow.training.optim import parameter_rows
from nasflow.training.unit import fused, step_graph
from tests.fake_graph import FakeRecorder
from tests.training.fused_jobs import fused_members, same
from tests.training.interrupted import interrupted, preempted
from tests.training.jobs import evaluator, evictions, make_job, outcome, train, weights
from tests.training.models.graph_spaces import KINDS, Again

pytestmark = pytest.mark.long

FILE = "graph_spaces.py"
NUMBERS: dict[str, Any] = {
    "kind": "regression",
    "epochs": 4,
    "precision": "64-true",
    "data": {"target": "fused_spaces.py:numbers"},
}
MEMBERS = [{"width": 8, "p": 0.2}, {"width": 8, "p": 0.7}, {"width": 8, "p": 0.5}, {"width": 4, "p": 0.2}]


class Refusing(FakeRecorder):
    """Captures nothing, so that steps are made as without."""

    def capture(self, step: Any) -> Any:
        raise RuntimeError("no")


class Late(FakeRecorder):
    """Fails once the operations are recorded."""

    def capture(self, step: Any) -> Any:
        super().capture(step)
        raise RuntimeError("too late")


class Card:
    """A CPU that captures steps by recorders of some kind."""

    def __init__(self) -> None:
        self.kind: type[FakeRecorder] = FakeRecorder
        self._made: list[FakeRecorder] = []

    def recorder_on(self, device: torch.device) -> FakeRecorder:
        self._made.append(self.kind())
        return self._made[-1]

    @property
    def replays(self) -> int:
        return sum(recorder.replays for recorder in self._made)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """Replays what torch computes: native kernels are no operations of torch."""
    from nasflow.native import library

    card = Card()
    monkeypatch.setattr(library, "_library", lambda: None)
    monkeypatch.setattr(fused, "recorder_on", card.recorder_on)
    monkeypatch.setattr(step_graph, "recorder_on", lambda device: FakeRecorder())
    return card


def job(kinds: str | Sequence[str], members: Iterable[Mapping[str, Any]] = MEMBERS, **values: Any) -> JobSpec:
    """A job of members of each kind of nets.

    Args:
        values: of the evaluator, or of `merge`.
    """
    merge = {"cuda_graphs": True, "fuse": "always", **values.pop("merge", {})}
    named = [kinds] if isinstance(kinds, str) else kinds
    all_members = [{"kind": kind, **member} for kind in named for member in members]
    spec = make_job(f"{FILE}:net", evaluator(**{**NUMBERS, **values}), all_members)
    return changed(spec, **merge)


def changed(spec: JobSpec, **merge: Any) -> JobSpec:
    return spec.model_copy(update={"merge": spec.merge.model_copy(update=merge)})


def check(spec: JobSpec, root: Path, card: Card) -> list[Event]:
    """Members come to the same bits with and without graphs, and alone to the same; the events with graphs."""
    graphed = train(spec, root / "graphed")
    card.kind = Refusing
    plain, alone = train(spec, root / "plain"), train(changed(spec, fuse="never"), root / "alone")
    assert evictions(graphed).keys() == evictions(plain).keys() == evictions(alone).keys()
    for trial in {member.trial for member in spec.members} - evictions(graphed).keys():
        found = outcome(graphed, root / "graphed", trial)
        assert found == outcome(plain, root / "plain", trial), trial
        same(found, outcome(alone, root / "alone", trial))
    return graphed


def resumed(spec: JobSpec, then: JobSpec, root: Path, epoch: int, tolerance: float | None = None) -> None:
    """A job that is killed goes on as another one to what it would have come to."""
    whole = train(spec, root / "whole")
    events = interrupted(spec, root / "killed", 2, epoch)
    events += [event for event in train(then, root / "killed") if event not in events]
    for member in spec.members:
        found, wanted = (outcome(*pair, member.trial) for pair in ((events, root / "killed"), (whole, root / "whole")))
        assert found == wanted if tolerance is None else same(found, wanted, tolerance) is None


ONE = [{"classes": 1, **member} for member in MEMBERS]
TWO = ONE[1::2]


@pytest.mark.parametrize(
    ("kinds", "is_captured"),
    [
        (["twice", "shared", "copied", "lazy", "first"], True),
        (["some", "ends", "in place", "norm", "stateless"], True),
        (["off", "on", "frozen", "frozen in training", "frozen in evaluation"], True),
        (["weights", "spectral", "attention"], True),
        (["recurrent", "encoder"], True),
        (["subclass", "twice"], False),
        (["function", "channels"], False),
        (["images", "alpha"], False),
        (["attention that drops", "recurrent that drops"], False),
        (["cumulative", "hidden", "twice"], False),
        (["patched", "hooked", "again", "raises"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_layers(kinds: list[str], is_captured: bool, tmp_path: Path, card: Card) -> None:
    events = check(job(kinds, TWO, epochs=2), tmp_path, card)
    assert evictions(events).keys() == ({7} if "raises" in kinds else set())
    assert (card.replays > 0) is is_captured
    reasons = [reason for event in events if isinstance(event, Planned) for reason in event.alone.values()]
    assert all("stays in training mode" in reason or "something else reads" in reason for reason in reasons), reasons


CLIPPED = {"gradient_clip_val": 0.5, "schedule": {"name": "one_cycle", "interval": "step"}}


@pytest.mark.parametrize(
    ("kind", "recipe", "is_captured"),
    [
        ("norm", {"optimizer": {"name": "adamw", "weight_decay": 0.1, "no_decay": ["norm", "bias"]}, **CLIPPED}, True),
        ("twice", {"optimizer": {"name": "adam", "params": {"amsgrad": True}}}, False),
        ("twice", {"optimizer": {"name": "adam", "lr": 0.01, "betas": [0.8, 0.9]}, "ema": {"decay": 0.8}}, True),
        ("norm", {"optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True}}, True),
        ("norm", {"optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9, "params": {"dampening": 0.3}}}, True),
        ("norm", {"optimizer": {"name": "rmsprop", "momentum": 0.5, "params": {"centered": True}}}, True),
        ("twice", {"optimizer": {"name": "adagrad", "params": {"lr_decay": 0.1}}}, False),
        ("norm", {"accumulate_grad_batches": 2}, False),
        ("twice", {"repeats": 2}, True),
        ("norm", {"folds": 2}, True),
        ("norm", {"merge": {"verify": "epoch"}}, True),
        ("twice", {"merge": {"fuse": "measured"}}, True),
        ("norm", {"data": {"target": f"{FILE}:sizes"}, "epochs": 3}, True),
        ("norm", {"early_stopping": {"patience": 1, "min_delta": 0.2}, "epochs": 6}, True),
    ],
    ids=lambda value: str(next(reversed(value.values()))) if isinstance(value, dict) else "",
)
def test_recipes(kind: str, recipe: dict[str, Any], is_captured: bool, tmp_path: Path, card: Card) -> None:
    events = check(job(kind, ONE, **recipe), tmp_path, card)
    assert not evictions(events)
    assert (card.replays > 0) is is_captured


@pytest.mark.parametrize("kind", ["norm", "again"])
def test_a_member_that_diverges_changes_no_bit_of_others(kind: str, tmp_path: Path, card: Card) -> None:
    options = {"optimizer": {"name": "sgd", "lr": {"float": [1e-3, 1e300], "log": True}}, "gradient_clip_val": 5.0}
    rates = {False: [0.01, 0.01, 0.01, 0.01], True: [0.01, 1e300, 0.01, 0.01]}
    events = {}
    for bad, of_members in rates.items():
        members = [{**member, "optimizer.lr": rate} for member, rate in zip(ONE, of_members, strict=True)]
        events[bad] = train(job(kind, members, **options), tmp_path / str(bad))
    assert evictions(events[True]).keys() == {1}
    for trial in (0, 2, 3):
        assert outcome(events[True], tmp_path / "True", trial) == outcome(events[False], tmp_path / "False", trial)


def test_members_wait_and_units_lose_members(tmp_path: Path, card: Card) -> None:
    members = [{**member, "epochs": 2 + place} for place, member in enumerate(ONE)]
    check(job(["twice", "norm"], members, epochs={"int": [1, 9]}, merge={"max_members": 3}), tmp_path, card)


def test_a_unit_that_fails_begins_anew_with_the_first_masks(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a checkpoint, and after."""
    spec = job("twice", ONE)
    whole, made, calls = train(spec, tmp_path / "whole"), fused.FusedUnit.train_batch, []

    def train_batch(unit: fused.FusedUnit, batch: Any, index: int) -> None:
        calls.append(len(unit.members))
        if len(calls) in (3, 12):
            raise torch.OutOfMemoryError("no")
        made(unit, batch, index)

    monkeypatch.setattr(fused.FusedUnit, "train_batch", train_batch)
    split = train(spec, tmp_path / "split")
    assert set(calls) == {4, 2, 1} and not evictions(split)
    for trial in range(4):
        same(outcome(split, tmp_path / "split", trial), outcome(whole, tmp_path / "whole", trial))


@pytest.mark.parametrize("count", [1, 4])
def test_a_capture_that_fails_at_its_end_changes_nothing(count: int, tmp_path: Path, card: Card) -> None:
    spec = job("norm", ONE[:count], optimizer={"name": "adam", "lr": 0.01}, ema={"decay": 0.9})
    events = {}
    for kind in (Late, Refusing):
        card.kind = kind
        events[kind] = train(spec, tmp_path / kind.__name__)
    for trial in range(count):
        late, plain = (outcome(events[kind], tmp_path / kind.__name__, trial) for kind in (Late, Refusing))
        assert late == plain


@pytest.mark.parametrize("many", [{"repeats": 2}, {"folds": 2}, {}], ids=str)
def test_killed_after_some_have_left(many: dict[str, int], tmp_path: Path, card: Card) -> None:
    members = [{**member, "epochs": epochs} for member, epochs in zip(ONE, [2, 5, 5, 3], strict=True)]
    spec = job("norm", members, epochs={"int": [1, 9]}, ema={"decay": 0.7}, **CLIPPED, **many)
    resumed(spec, spec, tmp_path, 3)


def test_killed_merged_and_going_on_alone(tmp_path: Path, card: Card) -> None:
    spec = job("twice", ONE)
    resumed(spec, changed(spec, fuse="never"), tmp_path, 2, 1e-9)


@pytest.mark.parametrize("first", [True, False])
def test_the_key_changes_between_two_runs(first: bool, tmp_path: Path, card: Card) -> None:
    spec = job("norm", ONE)
    interrupted(changed(spec, cuda_graphs=first), tmp_path, 2, 2)
    events = train(changed(spec, cuda_graphs=not first), tmp_path)
    assert not evictions(events) and (card.replays > 0)


def test_asked_to_end_within_an_epoch(tmp_path: Path, card: Card) -> None:
    """In the next one steps are replayed at once, on other batches."""
    data = {"target": "spaces.py:taken_back", "params": {"marker": str(tmp_path / "marker"), "batch": 3}}
    spec = job("twice", [{**member, "classes": 3} for member in MEMBERS], kind="classification", data=data)
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"on_preempt": True})})
    preempted(spec, tmp_path / "twice")
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for trial in range(4):
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop"])
def test_columns_as_wide_as_the_parameters_come_to_the_same_bits(
    name: str, tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, while members leave and rates move, with decays for some."""
    own = {"optimizer.lr": 0.02, "optimizer.weight_decay": 0.0}
    members = [{**member, **own, "epochs": 3 + place} for place, member in enumerate(ONE)]
    members[1] |= {"optimizer.lr": 0.01, "optimizer.weight_decay": 0.1}
    optimizer = {"name": name, "lr": {"float": [0.001, 0.1]}, "weight_decay": {"pick": [0.0, 0.1]}, "eps": 1e-6}
    if name == "sgd":
        optimizer |= {"momentum": 0.9, "eps": None}
    options = {"epochs": {"int": [1, 9]}, "optimizer": optimizer, "precision": "32-true"}
    spec = job("norm", members, **options, **CLIPPED)
    narrow = train(spec, tmp_path / "narrow")
    monkeypatch.setattr(parameter_rows, "is_wide", lambda slabs: True)
    wide = train(spec, tmp_path / "wide")
    assert card.replays > 0
    for trial in range(4):
        assert outcome(wide, tmp_path / "wide", trial) == outcome(narrow, tmp_path / "narrow", trial)


def test_a_model_by_itself_with_two_groups_of_parameters(tmp_path: Path, card: Card) -> None:
    optimizer = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "no_decay": ["bias"]}
    check(job("norm", ONE[:1], optimizer=optimizer, schedule={"name": "linear", "interval": "step"}), tmp_path, card)
    assert card.replays > 0


def test_a_plain_module_loads_a_checkpoint(tmp_path: Path, card: Card) -> None:
    train(job("copied", ONE, epochs=1), tmp_path)
    for trial, member in enumerate(MEMBERS):
        found = {name.removeprefix("model."): tensor for name, tensor in weights(tmp_path, trial).items()}
        KINDS["copied"](**member).load_state_dict(found)


def test_a_frozen_trunk_with_dropout_is_computed_once(tmp_path: Path, card: Card) -> None:
    spec = job("frozen in evaluation", ONE[:3], epochs=1)
    kernels = []
    for graphs in (False, True):
        events = train(changed(spec, cuda_graphs=graphs), tmp_path / str(graphs))
        kernels += [unit.kernels["once"] for event in events if isinstance(event, Planned) for unit in event.units]
    assert kernels == [4, 4]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_the_backward_has_the_same_masks(reentrant: bool) -> None:
    """As with torch's own dropout."""
    whole = Again(8, 0.5, reentrant)
    other = copy.deepcopy(whole)
    CounterDropout.put_into(other, lambda name: 1)
    x = torch.randn(5, 8, requires_grad=True)
    for module in (whole, other):
        torch.manual_seed(0)
        module(x).sum().backward()
    pairs = zip(whole.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one.grad, two.grad) for one, two in pairs)  # type: ignore[arg-type]


def test_transforms_of_functions_draw_as_without() -> None:
    """Gradients of samples, each with a mask."""
    whole = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
    CounterDropout.put_into(whole, lambda name: 1)
    weight = dict(whole.named_parameters())

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(whole, own, (x,)).sum()

    grads = vmap(grad(loss), (None, 0), randomness="different")(weight, torch.ones(6, 3))["0.weight"]
    assert len(grads.unique(dim=0)) > 1


def test_a_hook_can_export_a_model() -> None:
    whole, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5)), torch.randn(2, 3)
    CounterDropout.put_into(whole, lambda name: 1)
    for exported in (torch.jit.script(whole).eval(), torch.export.export(whole.eval(), (x,)).module()):
        torch.testing.assert_close(exported(x), whole.eval()(x))


@pytest.mark.parametrize("how", ["rate", "monte carlo", "step", "checkpoint", "twice", "teacher", "transform"])
def test_lightning_modules(how: str, tmp_path: Path, card: Card) -> None:
    """They are not captured, but their masks are by counters, too."""
    module = {"target": f"{FILE}:Steps", "params": {"how": how}}
    events = check(job("twice", ONE, kind="lightning", module=module, epochs=2), tmp_path, card)
    assert not evictions(events) and (fused_members(events) == set(range(4)) or how == "transform")
    assert card.replays == 0
