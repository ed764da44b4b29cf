"""Metrics by name: they depend neither on how data are cut into batches, nor on their scale, nor on ignored labels."""

from typing import Any

import pytest
import sklearn.metrics as sk
import torch

from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.evaluator.ready_made.named_metrics import R2
from nasflow.evaluator.ready_made.supervised import SupervisedModule
from nasflow.training.member.metrics.metric_states import load_metric_states, metric_states
from tests.evaluator.ready_made.group_members import (
    CLASS_METRICS,
    Batch,
    Logged,
    alone,
    classification,
    in_double,
    regression,
    same,
    together,
)


def cut(outputs: torch.Tensor, target: torch.Tensor, size: int) -> list[Batch]:
    return [(outputs[:, at : at + size], target[at : at + size]) for at in range(0, len(target), size)]


def found(modules: list[Any], batches: list[Batch]) -> Logged:
    """What members log by themselves, which is also what they log together."""
    logged = alone(modules, [], batches)
    same(together(SupervisedGroup(modules), [], batches), logged, rel=1e-6)
    return logged


def two(make: Any, **values: Any) -> list[SupervisedModule]:
    return [make(**values), make(**values)]


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e9])
@pytest.mark.parametrize("targets", [(), (3,)], ids=["one target", "three"])
@pytest.mark.parametrize("moved", [0.0, 1e3], ids=["about zero", "far from zero"])
def test_r2_does_not_depend_on_the_scale(moved: float, targets: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    with in_double():
        target = moved + torch.randn(40, *targets, generator=generator)
        outputs = (target + 0.5 * torch.randn(2, 40, *targets, generator=generator)) * scale
        target = target * scale
        for size in (7, 40):
            for row, own in enumerate(found(two(regression, metrics=["r2"]), cut(outputs, target, size))):
                assert own["val_r2"] == pytest.approx(sk.r2_score(target, outputs[row]), rel=1e-9)


def test_r2_of_targets_that_are_all_the_same() -> None:
    """As scikit-learn says: 1 for the targets themselves, 0 for anything else, however near."""
    target = torch.full((9,), 0.1)
    outputs = torch.stack([target, target + 1e-6])
    first, second = found(two(regression, metrics=["r2"]), cut(outputs, target, 4))
    assert (first["val_r2"], second["val_r2"]) == (1, 0)


def test_r2_goes_on_from_its_state() -> None:
    generator = torch.Generator().manual_seed(0)
    target = 1e-5 * torch.randn(20, generator=generator)
    outputs = target + 1e-6 * torch.randn(20, generator=generator)
    whole, begun, resumed = R2(), R2(), R2()
    whole.update(outputs[:12], target[:12])
    whole.update(outputs[12:], target[12:])
    begun.update(outputs[:12], target[:12])
    load_metric_states(resumed, metric_states(begun))
    resumed.update(outputs[12:], target[12:])
    assert resumed.compute() == whole.compute() == pytest.approx(sk.r2_score(target, outputs), rel=1e-5)


@pytest.mark.parametrize("targets", [(), (3,)])
@pytest.mark.parametrize("moved", [0.0, 1e6])
def test_r2_of_several_ranks(moved: float, targets: tuple[int, ...]) -> None:
    """torchmetrics gives each state of all ranks, one after the other; a rank may have had no samples."""
    generator = torch.Generator().manual_seed(0)
    target = moved + torch.randn(20, *targets, generator=generator, dtype=torch.float64)
    outputs = target + 0.5 * torch.randn(20, *targets, generator=generator, dtype=torch.float64)
    ranks = [R2(), R2(), R2()]
    if targets:
        ranks.pop(0)  # without samples it does not know how many targets there are
    for rank, part in zip(ranks[-2:], (slice(0, 7), slice(7, 20)), strict=True):
        rank.update(outputs[part], target[part])
    together = R2()
    for name in ("residual", "offset", "sum", "squares", "samples"):
        setattr(together, name, torch.stack([getattr(rank, name) for rank in ranks]))
    assert together.scores().mean().item() == pytest.approx(sk.r2_score(target, outputs), rel=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_auroc_does_not_depend_on_the_batches(classes: int) -> None:
    """Also where the logits of some batches look like probabilities."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(24) % classes
    outputs = torch.rand(2, 24, classes, generator=generator)
    outputs[:, 12:] = 4 * outputs[:, 12:] - 2
    chances = outputs.softmax(-1)
    wanted = [
        sk.roc_auc_score(target, own[:, 1] if classes == 2 else own, multi_class="ovr", average="macro")
        for own in chances
    ]
    for size in (4, 12, 24):
        logged = found(two(classification, metrics=["auroc"]), cut(outputs, target, size))
        assert [own["val_auroc"] for own in logged] == pytest.approx(wanted, rel=1e-5)


def test_ignored_labels_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(40) % 4
    outputs = torch.randn(2, 40, 4, generator=generator) + torch.nn.functional.one_hot(target, 4)
    ignored = torch.rand(40, generator=generator) < 0.4
    ignored[:8] = True  # all of a batch; its loss is not a number
    modules = two(classification, metrics=[*CLASS_METRICS, {"name": "top2", "top_k": 2}])
    logged = found(modules, cut(outputs, target.masked_fill(ignored, -100), 8))
    wanted = found(modules, cut(outputs[:, ~ignored], target[~ignored], 8))
    for own, other in zip(logged, wanted, strict=True):
        del own["val_loss"], other["val_loss"]
        assert own == pytest.approx(other, rel=1e-6)
    assert logged[0]["val_accuracy"] == pytest.approx(
        sk.accuracy_score(target[~ignored], outputs[0, ~ignored].argmax(1))
    )


def test_no_class_number_in_bytes_is_ignored() -> None:
    """156 and -100 are the same byte."""
    target = torch.tensor([156, 156, 3, 4], dtype=torch.uint8)
    outputs = torch.nn.functional.one_hot(torch.tensor([156, 2, 3, 9]), 160).float().repeat(2, 1, 1)
    logged = found(two(classification, metrics=["accuracy", "recall"]), [(outputs, target)])
    assert logged[0]["val_accuracy"] == 0.5
    assert logged[0]["val_recall"] == pytest.approx((1 / 2 + 1 + 0) / 5)  # of 5 classes that are given or taken


def test_accuracy_never_waits_for_a_device() -> None:
    """Tensors on `meta` have no values, so this fails where the host looks at one."""
    group = SupervisedGroup(two(classification, metrics=["accuracy"]))
    for size in (4, 3):
        group.validate(torch.empty(2, size, 3, device="meta"), torch.empty(size, dtype=torch.long, device="meta"))
