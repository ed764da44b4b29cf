"""Targets of regression in whatever type a data set gives them."""

from typing import Any

import pytest
import torch

from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.evaluator.ready_made.unusable import refuse_data
from tests.evaluator.ready_made.group_members import regression


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_targets_of_any_type_are_numbers(kind: torch.dtype, loss: str) -> None:
    """By themselves and merged; torch's backward would refuse some of them."""
    x, target = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0]).to(kind)
    module = regression(loss=loss)
    module.model = torch.nn.Linear(2, 1)
    output, numbers = module.compare((x, target))
    module.loss(output, numbers).backward()
    assert numbers.dtype == torch.float32
    outputs = output.detach().repeat(2, 1).requires_grad_()
    losses = SupervisedGroup([regression(loss=loss), regression(loss=loss)]).losses(outputs, target)
    losses.sum().backward()
    assert torch.allclose(losses, module.loss(output, numbers).detach().expand(2))


def test_targets_keep_the_precision_of_the_predictions() -> None:
    module = regression()
    module.model = torch.nn.Linear(2, 1).double()
    _, target = module.compare((torch.randn(3, 2).double(), torch.tensor([0.1, 0.2, 0.3])))
    assert target.dtype == torch.float64
    module.model = torch.nn.Linear(2, 1).bfloat16()
    _, target = module.compare((torch.randn(3, 2).bfloat16(), torch.tensor([0.1, 0.2, 0.3])))
    assert target.dtype == torch.float32


class Targets:
    """Targets that are no tensor, as a TensorDict."""

    ndim = 1

    def __init__(self, values: torch.Tensor):
        self.values = values

    def to(self, *args: Any) -> "Targets":
        return self


def test_a_loss_by_import_path_may_take_targets_that_are_no_tensor() -> None:
    module = regression(loss={"target": "torch.nn:MSELoss"}, metrics=[])
    module.model = torch.nn.Linear(2, 1)
    given = Targets(torch.randn(3))
    assert module.compare((torch.randn(3, 2), given))[1] is given
    refuse_data(module.config, (torch.randn(3, 2), given))
    named = regression()
    named.model = module.model
    with pytest.raises(TrialError, match="its loader gives a Targets"):
        named.compare((torch.randn(3, 2), given))
