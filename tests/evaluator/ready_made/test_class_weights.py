"""Weighted cross-entropies of a group are torch's own, and no member's bits depend on the others."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.group_losses import ClassificationLosses
from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from tests.evaluator.ready_made.group_members import alone, classification, in_double, logits, same, together

MEMBER = st.tuples(st.sampled_from([0.0, 0.1, 1.0]), st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.5]), min_size=40))
SEEDS = st.integers(0, 2**31)


@settings(max_examples=25, deadline=None)
@given(members=st.lists(MEMBER, min_size=1, max_size=4), classes=st.sampled_from([2, 3, 20]), seed=SEEDS)
def test_as_alone(members: list[tuple[float, list[float]]], classes: int, seed: int) -> None:
    with in_double():
        modules = [
            classification(label_smoothing=smoothing, class_weights=[1.0, *weights[: classes - 1]])
            for smoothing, weights in members
        ]
        batches = [logits(len(modules), classes, [5, 33], seed + place) for place in range(2)]
        for batch in batches:
            batch[0][1][0] = batch[1][1][0] = 0  # a class that counts
        same(together(SupervisedGroup(modules), *batches), alone(modules, *batches))


@pytest.mark.parametrize("classes", [3, 20])
@pytest.mark.parametrize("ignored", [0, 9])
def test_losses_and_gradients_are_torchs(classes: int, ignored: int) -> None:
    weights = torch.rand(4, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    smoothing = [0.0, 0.3, 0.0, 1.0]
    losses = ClassificationLosses(smoothing, weights.tolist())
    for outputs, target in logits(4, classes, [33, 16], 0):
        target[:ignored] = -100
        leaf, own = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
        wanted = torch.stack(
            [F.cross_entropy(own[i], target, weights[i], label_smoothing=smoothing[i]) for i in range(4)]
        )
        found = losses(leaf, target)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(leaf.grad, own.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_member_depends_on_another(dtype: torch.dtype) -> None:
    weights = [[0.1, 2.0, 1.0], [1.0, 1.0, 1.0], [3.0, 0.0, 0.5]]
    for outputs, target in logits(3, 3, [33, 7], 0, dtype):
        whole = ClassificationLosses([0.1, 0.0, 0.0], weights)(outputs, target)
        spoiled = outputs.clone()
        spoiled[0] = float("nan")
        assert torch.equal(ClassificationLosses([0.1, 0.0, 0.0], weights)(spoiled, target)[1:], whole[1:])
        for row in (1, 2):
            single = ClassificationLosses([0.0], [weights[row]])(outputs[row : row + 1], target)
            assert torch.equal(single[0], whole[row])


@pytest.mark.parametrize(
    ("weights", "fits"), [(([1, 2], [3, 1]), True), (([1, 2], None), False), ((None, None), True)], ids=str
)
def test_fits(weights: Any, fits: bool) -> None:
    assert SupervisedGroup.fits([classification(class_weights=own) for own in weights]) is fits


def test_another_number_of_classes_is_said() -> None:
    module = classification(class_weights=[1, 2])
    with pytest.raises(TrialError, match="there are 2, and the model tells 3 classes apart"):
        module.loss(torch.rand(4, 3), torch.zeros(4, dtype=torch.long))
