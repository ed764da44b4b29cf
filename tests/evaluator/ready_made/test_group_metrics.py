"""A group logs what its members' own steps log, and no member's numbers depend on the others."""

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.evaluator.ready_made.supervised import ClassificationModule, RegressionModule, SupervisedModule
from tests.evaluator.ready_made.group_members import (
    CLASS_METRICS,
    ERROR_METRICS,
    Batch,
    Logged,
    alone,
    classification,
    in_double,
    logits,
    numbers,
    regression,
    same,
    together,
)

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None)
@given(
    smoothing=st.lists(st.sampled_from([0.0, 0.1, 0.35, 1.0]), min_size=1, max_size=4),
    metrics=st.lists(st.sampled_from(CLASS_METRICS), unique=True),
    classes=st.integers(2, 5),
    sizes=st.tuples(SIZES, SIZES),
    seed=st.integers(0, 2**31),
)
def test_classification_as_alone(
    smoothing: list[float], metrics: list[str], classes: int, sizes: tuple[list[int], list[int]], seed: int
) -> None:
    with in_double():
        modules = [classification(label_smoothing=value, metrics=metrics) for value in smoothing]
        group = SupervisedGroup(modules)
        for epoch in range(2):
            training = logits(len(modules), classes, sizes[0], seed + epoch)
            validation = logits(len(modules), classes, sizes[1], seed + epoch + 2)
            same(together(group, training, validation), alone(modules, training, validation))


@settings(max_examples=25, deadline=None)
@given(
    losses=st.lists(st.sampled_from(["mse", "mae", "huber"]), min_size=1, max_size=5),
    metrics=st.lists(st.sampled_from(ERROR_METRICS), unique=True),
    shape=st.sampled_from(["B", "B1 B", "B B1", "B1 B1", "BT"]),
    sizes=st.tuples(SIZES, SIZES),
    seed=st.integers(0, 2**31),
)
def test_regression_as_alone(
    losses: list[str], metrics: list[str], shape: str, sizes: tuple[list[int], list[int]], seed: int
) -> None:
    with in_double():
        modules = [regression(loss=loss, metrics=metrics) for loss in losses]
        group = SupervisedGroup(modules)
        for epoch in range(2):
            training = numbers(len(modules), sizes[0], seed + epoch, shape)
            validation = numbers(len(modules), [2, *sizes[1]], seed + epoch + 2, shape)  # r2 refuses a single sample
            same(together(group, training, validation), alone(modules, training, validation))


def mixed_classification() -> list[ClassificationModule]:
    return [classification(label_smoothing=value, metrics=CLASS_METRICS) for value in (0, 0.1, 0, 0.3, 0, 0)]


def mixed_regression() -> list[RegressionModule]:
    kinds = ("mae", "mse", "huber", "mse", "mae", "huber")
    return [regression(loss=loss, metrics=ERROR_METRICS) for loss in kinds]


def batches_for(make: Any, sizes: Sequence[int], dtype: Any = torch.float64) -> list[Batch]:
    if make is mixed_classification:
        return logits(6, 10, sizes, 0, dtype)
    return numbers(6, sizes, 0, "BT", dtype)


KINDS = pytest.mark.parametrize("make", [mixed_classification, mixed_regression], ids=["classification", "regression"])


@KINDS
def test_gradients_as_alone(make: Any) -> None:
    modules = make()
    [(outputs, target)] = batches_for(make, [7])
    mine, own = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)
    losses = SupervisedGroup(modules).losses(mine, target)
    wanted = torch.stack([module.loss(*module.compare((own[row], target))) for row, module in enumerate(modules)])
    torch.testing.assert_close(losses, wanted, rtol=1e-13, atol=1e-14)
    (losses * weights).sum().backward()
    (wanted * weights).sum().backward()
    torch.testing.assert_close(mine.grad, own.grad, rtol=1e-12, atol=1e-15)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_without_autograd_are_those_with_it(make: Any, dtype: torch.dtype) -> None:
    with_it, without = SupervisedGroup(make()), SupervisedGroup(make())
    batches = batches_for(make, [33, 64, 5], dtype)
    if make is mixed_regression:
        batches += numbers(6, [7], 1, "B1 B", dtype)
    else:
        [(outputs, _)] = logits(6, 10, [7], 1, dtype)
        batches.append((outputs, outputs[0].softmax(1)))  # chances, which no vector takes
    for outputs, target in batches:
        leaf = outputs.clone().requires_grad_()
        losses = with_it.losses(leaf, target)
        with_it.count(len(target))
        losses.sum().backward()
        with torch.no_grad():
            found, gradients = without.losses_and_gradients(outputs, target)
            without.count(len(target))
        assert torch.equal(found, losses) and torch.equal(gradients, leaf.grad)  # type: ignore[arg-type]
        assert not found.requires_grad and not gradients.requires_grad
    assert with_it.close_training() == without.close_training()


@KINDS
def test_losses_have_the_dtype_of_outputs(make: Any) -> None:
    group = SupervisedGroup(make())
    for dtype in (torch.float64, torch.float32):
        [(outputs, target)] = batches_for(make, [7], dtype)
        assert group.losses(outputs, target).dtype is dtype


def bits(modules: Sequence[SupervisedModule], batches: list[Batch]) -> tuple[list[Any], Logged]:
    """By member: its losses and gradients, batch for batch; and its logged numbers."""
    group = SupervisedGroup(modules)
    raw: list[Any] = [[] for _ in modules]
    for outputs, target in batches:
        leaf = outputs.clone().requires_grad_()
        losses = group.losses(leaf, target)
        losses.sum().backward()
        assert leaf.grad is not None
        for row in range(len(modules)):
            raw[row].append((losses[row].item(), (leaf.grad[row] + 0).double().numpy().tobytes()))  # + 0: -0 is 0
    return raw, together(group, [], batches)


@cache
def all_bits(make: Any) -> tuple[list[Any], Logged]:
    return bits(make(), batches_for(make, [33, 64, 5], torch.float32))


@KINDS
@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.integers(0, 5), min_size=1, unique=True))
def test_not_a_bit_depends_on_the_others(make: Any, rows: list[int]) -> None:
    modules, batches = make(), batches_for(make, [33, 64, 5], torch.float32)
    raw, logged = all_bits(make)
    some, some_logged = bits([modules[row] for row in rows], [(outputs[rows], target) for outputs, target in batches])
    assert some == [raw[row] for row in rows]
    assert some_logged == [{"train_loss": logged[row]["train_loss"]} | logged[row] for row in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("classes", "samples"), [(2, 64), (10, 29), (10, 256), (15, 100), (40, 64)])
def test_not_a_bit_depends_on_many_others(classes: int, samples: int, dtype: torch.dtype) -> None:
    modules = [classification(label_smoothing=0.1 * (number % 3)) for number in range(100)]
    batches = logits(100, classes, [samples], 0, dtype)
    raw, _ = bits(modules, batches)
    for rows in ([99], [3, 98], [*range(0, 100, 3)]):
        some, _ = bits([modules[row] for row in rows], [(outputs[rows], target) for outputs, target in batches])
        assert some == [raw[row] for row in rows]


@KINDS
def test_nor_on_how_the_outputs_lie_in_memory(make: Any) -> None:
    modules, batches = make(), batches_for(make, [33, 64, 5], torch.float32)
    spread = [(outputs.transpose(0, 1).contiguous().transpose(0, 1), target) for outputs, target in batches]
    assert not spread[0][0].is_contiguous()
    assert bits(modules, spread) == bits(modules, batches)


@KINDS
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad", [0, 3])
def test_a_member_that_went_astray_touches_nobody(make: Any, poison: float, bad: int) -> None:
    batches = batches_for(make, [33, 5], torch.float32)
    raw, logged = bits(make(), batches)
    for outputs, _ in batches:
        outputs[bad] = poison
    poisoned, poisoned_logged = bits(make(), batches)
    assert not torch.tensor(poisoned[bad][0][0]).isfinite()
    for row in set(range(6)) - {bad}:
        assert poisoned[row] == raw[row]
        assert poisoned_logged[row] == logged[row]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_masked_classes(smoothing: float) -> None:
    """A logit of -inf is infinitely wrong with smoothing, and nothing at all to a member without."""
    [(outputs, target)] = logits(2, 4, [6], 0)
    target.clamp_(max=2)
    outputs[:, :, 3] = float("-inf")
    modules = [classification(metrics=[]), classification(label_smoothing=smoothing, metrics=[])]
    leaf = outputs.clone().requires_grad_()
    losses = SupervisedGroup(modules).losses(leaf, target)
    assert losses[0].item() == pytest.approx(modules[0].loss(outputs[0], target).item())
    assert bool(losses[1].isinf()) == bool(smoothing)
    losses.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[0].isfinite().all()


@pytest.mark.parametrize("smoothing", [(0.0, 0.0), (0.0, 0.3)], ids=["plain", "smoothed"])
@pytest.mark.parametrize("ignored", [[], [0, 4], [0, 1, 2, 3, 4, 5]], ids=["none", "some", "all"])
def test_ignored_targets(smoothing: tuple[float, float], ignored: list[int]) -> None:
    """torch's cross-entropy passes over targets of -100, and so do metrics by name."""
    with in_double():
        modules = [classification(label_smoothing=value, metrics=CLASS_METRICS) for value in smoothing]
        batches = logits(2, 4, [6, 3], 0)
        batches[0][1][ignored] = -100
        same(together(SupervisedGroup(modules), batches, batches), alone(modules, batches, batches))
        outputs, target = batches[0]
        mine, own = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
        SupervisedGroup(modules).losses(mine, target).sum().backward()
        sum(module.loss(own[row], target) for row, module in enumerate(modules)).backward()
        torch.testing.assert_close(mine.grad, own.grad, equal_nan=True)


def test_chances_as_targets() -> None:
    modules = [classification(label_smoothing=0.1), classification()]
    [(outputs, target)] = logits(2, 4, [6], 0)
    batches = [(outputs, nn.functional.one_hot(target, 4).double())]
    same(together(SupervisedGroup(modules), batches, []), alone(modules, batches, []))


@pytest.mark.parametrize("metrics", [["accuracy"], ["f1", "recall"]])
def test_bytes_as_class_numbers(metrics: list[str]) -> None:
    with in_double():
        modules = [classification(metrics=metrics), classification(metrics=metrics)]
        batches = [(outputs, target.to(torch.uint8)) for outputs, target in logits(2, 4, [6, 3], 0)]
        same(together(SupervisedGroup(modules), batches, batches), alone(modules, batches, batches))


@KINDS
def test_autocast_as_alone(make: Any) -> None:
    modules = make()
    batches = [(outputs.bfloat16(), target) for outputs, target in batches_for(make, [33, 5], torch.float32)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(together(SupervisedGroup(modules), batches, batches), alone(modules, batches, batches), rel=1e-5)


@KINDS
def test_inference_mode_as_in_lightning(make: Any) -> None:
    """Lightning validates in inference mode, and numbers are read outside of it."""
    modules = make()
    group = SupervisedGroup(modules)
    batches = batches_for(make, [9, 4])
    for mode in (torch.inference_mode, nullcontext, torch.inference_mode):
        with mode():
            for outputs, target in batches:
                group.validate(outputs, target)
        same(group.close_validation(), alone(modules, [], batches), rel=1e-5)
    outputs, target = batches[0]
    group.losses(outputs.requires_grad_(), target).sum().backward()
    assert outputs.grad is not None


@KINDS
@pytest.mark.parametrize("step", ["losses", "validate"])
def test_what_is_counted_holds_no_graph(make: Any, step: str) -> None:
    group, [(outputs, target)] = SupervisedGroup(make()), batches_for(make, [7])
    held = weakref.ref(outputs.requires_grad_())
    getattr(group, step)(outputs, target)
    del outputs
    assert held() is None, "a graph would hold what gradients flow to"


def test_nothing_seen_nothing_logged() -> None:
    group = SupervisedGroup([regression(), regression()])
    assert group.close_training() == group.close_validation() == [{}, {}]


class OwnLoss(ClassificationModule):
    """A user's."""


@pytest.mark.parametrize(
    ("modules", "fits"),
    [
        (lambda: [classification(label_smoothing=0.1), classification()], True),
        (lambda: [regression(loss="mae"), regression()], True),
        (lambda: [], False),
        (lambda: [regression(), classification()], False),
        (lambda: [classification(), regression()], False),
        (lambda: [classification(), OwnLoss(nn.Identity(), classification().config)], False),
        (lambda: [OwnLoss(nn.Identity(), classification().config)], False),
        (lambda: [classification(metrics=["f1"]), classification()], False),
        (lambda: [classification(label_smoothing=1.5), classification()], False),
    ],
    ids=["smoothing", "losses", "none", "kinds", "kinds2", "subclass", "subclasses", "metrics", "wrong smoothing"],
)
def test_fits(modules: Any, fits: bool) -> None:
    assert SupervisedGroup.fits(modules()) is fits
    if not fits:
        with pytest.raises(ValueError, match="can't be a group"):
            SupervisedGroup(modules())


@pytest.mark.parametrize(
    ("make", "outputs", "target", "said"),
    [
        (classification, (2, 4, 1), (4,), r"needs logits \[B, C\] with C >= 2; the model gives \(4, 1\)"),
        (classification, (2, 4, 3, 2), (4, 2), r"classification needs logits .* the model gives \(4, 3, 2\)"),
        (regression, (2, 4, 2), (4,), r"predictions have shape \(4, 2\), targets \(4,\)"),
        (regression, (2, 4), (4, 2), r"predictions have shape \(4,\), targets \(4, 2\)"),
        (regression, (2, 4, 3, 2), (4, 3, 2), r"'r2' takes predictions .*, and the model gives \(4, 3, 2\)"),
        (regression, (2, 1), (1,), "needs at least two samples"),
        (classification, (2, 4, 3), (5,), r"needs logits .* the model gives \(4, 3\) for targets \(5,\)"),
    ],
)
def test_wrong_shapes_are_told_as_alone(
    make: Any, outputs: tuple[int, ...], target: tuple[int, ...], said: str
) -> None:
    batch = torch.zeros(outputs), torch.zeros(target, dtype=torch.long if make is classification else torch.float)
    with pytest.raises((TrialError, ValueError), match=said) as own:
        alone([make()], [], [batch])
    with pytest.raises(own.type, match=said):
        together(SupervisedGroup([make(), make()]), [], [batch])
    if "predictions have shape" in said:
        with pytest.raises(TrialError, match=said):
            SupervisedGroup([make(), make()]).losses(*batch)


@pytest.mark.parametrize("target", [[0, 1, 3], [0, 1, -1]], ids=["too large", "negative"])
def test_targets_that_are_no_class(target: list[int]) -> None:
    batch = torch.zeros(2, 3, 3), torch.tensor(target)
    group = SupervisedGroup([classification(), classification()])
    for used in (group.losses, group.validate):
        with pytest.raises(TrialError, match="is no class of the model, which has 3, numbered 0 to 2"):
            used(*batch)


@KINDS
def test_losses_never_wait_for_a_device(make: Any) -> None:
    """Tensors on `meta` have no values, so this fails where the host looks at one."""
    [(outputs, target)] = batches_for(make, [7])
    losses = SupervisedGroup(make()).losses(outputs.to("meta").requires_grad_(), target.to("meta"))
    losses.sum().backward()
    assert losses.shape == (6,)


OWN_CLASS_METRICS: list[Any] = [
    "accuracy",
    {"name": "top2", "top_k": 2},
    {"name": "f1", "target": "torchmetrics.classification:MulticlassF1Score", "params": {"average": "weighted"}},
    {"name": "kappa", "target": "torchmetrics.classification:MulticlassCohenKappa"},
]


def test_metrics_and_losses_of_torch_by_path_as_alone() -> None:
    """One has the name of a known metric, and another average."""
    with in_double():
        classes = [
            classification(
                loss={"target": "torch.nn:MultiMarginLoss", "params": {"margin": m}}, metrics=OWN_CLASS_METRICS
            )
            for m in (0.5, 1.0, 2.0)
        ]
        metrics: list[Any] = ["r2", {"name": "spread", "target": "torchmetrics:ExplainedVariance"}]
        values = [
            regression(loss={"target": "torch.nn:SmoothL1Loss", "params": {"beta": beta}}, metrics=metrics)
            for beta in (0.1, 1.0, 3.0)
        ]
        for modules, make in (
            (classes, lambda seed: logits(3, 4, [7, 3], seed)),
            (values, lambda s: numbers(3, [7, 3], s)),
        ):
            group = SupervisedGroup(modules)  # type: ignore[arg-type]
            for epoch in range(2):
                same(together(group, make(epoch), make(epoch + 5)), alone(modules, make(epoch), make(epoch + 5)))  # type: ignore[arg-type]


def test_metrics_of_other_params_and_losses_of_other_kinds_are_no_group() -> None:
    def top(k: int) -> SupervisedModule:
        return classification(metrics=[{"name": "top", "top_k": k}])

    assert SupervisedGroup.fits([top(2), top(2)])
    assert not SupervisedGroup.fits([top(2), top(3)])
    assert not SupervisedGroup.fits([regression(loss={"target": "torch.nn:SmoothL1Loss"}), regression()])
