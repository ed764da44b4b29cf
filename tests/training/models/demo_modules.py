"""LightningModules of the package pytorch-lightning (pytorch_lightning.demos) that hold a candidate."""

from typing import Any

import torch
from pytorch_lightning.demos.boring_classes import BoringModel, DemoModel
from pytorch_lightning.demos.transformer import LightningTransformer, Transformer
from torch import nn
from torch.utils.data import DataLoader

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.training.models.fused_spaces import mixed

_WORDS, _LENGTH = 20, 6


class Boring(BoringModel):
    """Its layer is the candidate."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.layer = model


class Demo(DemoModel):
    """Its first layer is the candidate."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__(learning_rate=lr)
        self.l1 = model


class Words(LightningTransformer):
    """Its transformer is the candidate."""

    def __init__(self, model: nn.Module):
        super().__init__(vocab_size=_WORDS)
        self.model = model


def rows(pick: Pick) -> nn.Module:
    return mixed(pick, features=32)


def transformers(pick: Pick) -> nn.Module:
    hidden, layers, dropout = pick("hidden", [8, 16]), pick("layers", [1, 2]), pick("dropout", [0.0, 0.2])
    return Transformer(_WORDS, 8, nhid=hidden, nlayers=layers, dropout=dropout)


def numbers() -> tuple[DataLoader[torch.Tensor], DataLoader[torch.Tensor]]:
    """Batches that are one tensor, as those of BoringModel."""
    x: Any = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    return DataLoader(x, 16, shuffle=True), DataLoader(x, 16)


def texts() -> tuple[TensorLoader, TensorLoader]:
    """Numbers of words, and of those that follow."""
    words = torch.randint(_WORDS, (32, _LENGTH + 1), generator=torch.Generator().manual_seed(0))
    pairs = (words[:, :-1].contiguous(), words[:, 1:].contiguous())
    return TensorLoader(pairs, 8, shuffle=True), TensorLoader(pairs, 8)
