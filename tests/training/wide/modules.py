"""LightningModules and data that the tests of trials on several devices name as targets."""

from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def says_group() -> Any:
    raise ValueError(f"in a group: {dist.is_initialized()}")


class Plain(LightningModule):
    """Classifies, with a parameter beside the model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.scale = nn.Parameter(torch.ones(3))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        loss = F.cross_entropy(self.model(x) * self.scale, y)
        self.log("train_loss", loss, batch_size=len(y))
        self.log("most", x.max(), reduce_fx="max")
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x) * self.scale, y), batch_size=len(y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Sharding(Plain):
    """Shards the layers of its model by itself, where there are devices."""

    def configure_model(self) -> None:
        if self._device_mesh is not None:
            for layer in self.model.children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])


class Manual(Plain):
    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.automatic_optimization = False


class Closing(Plain):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters())


class FailsOnTheLastRank(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        if batch_idx == 1 and dist.get_rank() == dist.get_world_size() - 1:
            raise ValueError("this node can't go on")
        return super().training_step(batch, batch_idx)


class Skipping(Plain):
    """Has no loss for its second batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


class Normed(Plain):
    """Takes statistics of its batches."""

    def __init__(self, model: nn.Module):
        super().__init__(nn.Sequential(nn.BatchNorm1d(6), model))


class Unfreezing(Plain):
    """Trains a bias from its second epoch on."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        model[0].bias.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.model[0].bias.requires_grad_(self.current_epoch > 0)


class OfDicts(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(tuple(batch.values()), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(tuple(batch.values()), batch_idx)
