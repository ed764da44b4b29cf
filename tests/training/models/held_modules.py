"""LightningModules that hold the model that they are given otherwise than as `self.model`."""

from pathlib import Path
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


class Extended(Backbone):
    """Adds a layer to the model that it is given, when it is made or set up."""

    when = "made"

    def __init__(self, model: nn.Module):
        super().__init__(nn.Identity())
        self.model = model
        if self.when == "made":
            self.extend()

    def setup(self, stage: str) -> None:
        if self.when == stage:
            self.extend()

    def extend(self) -> None:
        self.model.append(nn.Linear(3, 3))  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class ExtendedBySetup(Extended):
    """When it is set up for training."""

    when = "fit"


class Swapped(ExtendedBySetup):
    """Has another activation in place of one: the names of the weights are the same."""

    def extend(self) -> None:
        self.model[1] = nn.Tanh()  # type: ignore[index, operator]


class SetUpByData(Backbone):
    """Looks at its data, which is not there where the trained model is loaded."""

    def setup(self, stage: str) -> None:
        len(self.trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]


class ExtendedByData(Extended):
    """Both."""

    when = "fit"

    def extend(self) -> None:
        SetUpByData.setup(self, "fit")  # type: ignore[arg-type]
        super().extend()


class HalfChanged(Swapped):
    """Has changed the model when it looks at its data."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        SetUpByData.setup(self, stage)  # type: ignore[arg-type]


class ExtendedThenByData(Extended):
    """Has changed it when it was made."""

    def setup(self, stage: str) -> None:
        SetUpByData.setup(self, stage)  # type: ignore[arg-type]


class Taught(Swapped):
    """Opens a file when it is made, after a change of the model."""

    when = "made"

    def __init__(self, model: nn.Module, file: str):
        super().__init__(model)
        self.teacher = Path(file).read_text()


class BySizes(Backbone):
    """Sets itself up by the sizes of layers that were lazy, one of which is its own. The model has a hook of it."""

    def __init__(self, model: nn.Module):
        super().__init__(nn.Identity())
        self.model, self.head = model, nn.LazyLinear(3)
        model.register_forward_hook(self.watch)

    def setup(self, stage: str) -> None:
        for layer in (self.model[-1], self.head):  # type: ignore[index]
            layer.scale = layer.in_features / 4  # 0 before they have their sizes

    def watch(self, layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * layer[-1].scale  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(x)) * self.head.scale


class Counting(nn.Module):
    """A layer with a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {"calls": 0, "last": torch.zeros(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = {"calls": self.seen["calls"] + 1, "last": x.detach().flatten()[:2].clone()}
        return x

    def get_extra_state(self) -> dict[str, Any]:
        return dict(self.seen)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.seen = state


def counting(pick: Any) -> nn.Module:
    """A model with such a layer."""
    return nn.Sequential(Counting(), nn.Linear(6, pick("width", [4, 8])), nn.LazyLinear(3))
