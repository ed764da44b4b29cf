"""LightningModules that hold the model that they are given otherwise than as `self.model`."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional as F


class Backbone(LightningModule):
    """Under another name."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.backbone = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.backbone(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Wrapped(Backbone):
    """Within another model."""

    def __init__(self, model: nn.Module):
        super().__init__(nn.Identity())
        self.model = nn.Sequential(nn.Flatten(), model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class InParts(Backbone):
    """Its layers one by one."""

    def __init__(self, model: nn.Module):
        super().__init__(nn.Identity())
        self.body, self.head = model[:-1], model[-1]  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Half(Backbone):
    """Only a part."""

    def __init__(self, model: nn.Module):
        super().__init__(model[:1])  # type: ignore[index]
