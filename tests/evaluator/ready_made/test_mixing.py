"""Batches with mixed samples."""

from typing import Any

import pytest
import torch

from nasflow.config.search import ClassificationConfig
from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.mixing import mix


def config(**values: Any) -> ClassificationConfig:
    return ClassificationConfig.model_validate({"data": {"target": "a:b"}, **values})


@pytest.mark.parametrize("values", [{"cutmix": {}}, {"mixup": {"alpha": 0.3}}, {"mixup": {}, "cutmix": {}}], ids=str)
def test_each_pixel_is_as_the_share_says(values: dict[str, Any]) -> None:
    """In images of one number each, the mean of a mixed one tells how much is of which."""
    torch.manual_seed(0)
    seen = set()
    for _ in range(200):
        x = torch.rand(5, 1, 1, 1, dtype=torch.float64).expand(5, 2, 7, 9)
        mixed = mix(config(**values), x)
        assert 0 <= mixed.share <= 1 and sorted(mixed.order.tolist()) == list(range(5))
        wanted = mixed.share * x + (1 - mixed.share) * x[mixed.order]
        torch.testing.assert_close(mixed.x.mean((1, 2, 3)), wanted.mean((1, 2, 3)), rtol=1e-12, atol=1e-12)
        is_box = bool(((mixed.x == x) | (mixed.x == x[mixed.order])).all())
        seen.add("cutmix" if is_box and 0 < mixed.share < 1 and mixed.order.tolist() != [0, 1, 2, 3, 4] else "mixup")
    assert seen >= set(values)


def test_the_loss_is_of_both_targets() -> None:
    torch.manual_seed(0)
    mixed = mix(config(mixup={}), torch.rand(4, 3))
    target = torch.arange(4.0)
    loss = mixed.loss(lambda output, wanted: wanted @ output, torch.ones(4), target)
    assert loss.item() == pytest.approx(6)
    mixed_targets = mixed.share * target + (1 - mixed.share) * target[mixed.order]
    assert mixed.loss(lambda output, wanted: wanted[0], torch.ones(4), target).item() == pytest.approx(mixed_targets[0])


@pytest.mark.parametrize(
    ("values", "x", "said"),
    [
        ({"cutmix": {}}, torch.rand(4, 8), r"evaluator.cutmix: needs images \[B, C, H, W\]"),
        ({"mixup": {}}, torch.ones(4, 8, dtype=torch.long), "evaluator.mixup: inputs of torch.int64 can't be mixed"),
    ],
)
def test_what_can_not_be_mixed(values: dict[str, Any], x: torch.Tensor, said: str) -> None:
    with pytest.raises(TrialError, match=said):
        mix(config(**values), x)


def test_alpha_is_positive() -> None:
    with pytest.raises(ValueError, match="'alpha' should be above 0"):
        config(mixup={"alpha": 0})
