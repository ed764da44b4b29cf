"""The space and the data of jobs of random models."""

from collections.abc import Sequence

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.trust.family import OUTPUTS, sample
from tests.trust.model import build as build_source


def build(pick: Pick, sources: Sequence[str]) -> nn.Module:
    """Return one of the models with these sources."""
    return build_source(sources[pick("member", list(range(len(sources))))])


def data(inputs: str) -> tuple[TensorLoader, TensorLoader]:
    """Return batches of 6, 6 and 4 to train, and one of 5 to validate."""
    generator = torch.Generator().manual_seed(3)
    x, y = sample(inputs, 21, generator, torch.float32), torch.randint(OUTPUTS, (21,), generator=generator)
    return TensorLoader((x[:16], y[:16]), 6, shuffle=True), TensorLoader((x[16:], y[16:]), 5)
