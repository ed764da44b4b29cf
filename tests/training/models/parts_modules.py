"""LightningModules that call parts of their model, as users write them."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick
from tests.training.models.fused_spaces import ACTIVATIONS
from tests.training.models.lightning_modules import Plain


class Autoencoder(nn.Module):
    """An encoder of which the widths differ, and a decoder to the features."""

    def __init__(self, pick: Pick):
        super().__init__()
        width, activation = pick("width", [4, 8]), ACTIVATIONS[pick("activation", ["relu", "gelu", "tanh"])]
        layers: list[nn.Module] = [nn.Linear(6, width), activation()]
        for _ in range(pick("depth", [0, 1])):
            layers += [nn.Linear(width, width), activation(), nn.Dropout(pick("dropout", [0.0, 0.2]))]
        self.encoder = nn.Sequential(*layers, nn.Linear(width, 5))
        self.decoder = nn.Sequential(nn.Linear(5, width), activation(), nn.BatchNorm1d(width), nn.Linear(width, 6))

    def forward(self, x: torch.Tensor) -> Any:
        return self.decoder(self.encoder(x))


class Variational(Autoencoder):
    """Its encoder gives two tensors."""

    def __init__(self, pick: Pick):
        super().__init__(pick)
        self.mean, self.log_variance = nn.Linear(5, 3), nn.Linear(5, 3)
        self.expand = nn.Linear(3, 5)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encoder(x).relu()
        return self.mean(z), self.log_variance(z)

    def decode(self, z: torch.Tensor) -> Any:
        return self.decoder(self.expand(z))

    def forward(self, x: torch.Tensor) -> Any:
        mean, log_variance = self.encode(x)
        return self.decode(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


def autoencoder(pick: Pick) -> nn.Module:
    return Autoencoder(pick)


def variational(pick: Pick) -> nn.Module:
    return Variational(pick)


class BackboneHead(Plain):
    """The candidate is a backbone; its head is the module's own."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(nn.Identity(), lr, how)
        self.backbone, self.head = model, nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.backbone(x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden = self.backbone(x)
        if self.how == "raise between" and self.global_step == 5:
            raise ValueError("between the parts")
        out = self.head(hidden.relu())
        if self.how == "raise after" and self.global_step == 5:
            raise ValueError("after the parts")
        loss = F.cross_entropy(out, y) + 1e-2 * hidden.square().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))


class DetachedHead(BackboneHead):
    """The backbone learns by a term of its own, in some steps not at all."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden = self.backbone(x)
        loss = F.cross_entropy(self.head(hidden.detach()), y)
        return loss if torch.rand(()) < 0.4 else loss + hidden.square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1)


class SkipsHead(DetachedHead):
    """Leaves its head out in some steps, and the whole batch in others."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden, drawn = self.backbone(x), torch.rand(())
        if batch_idx > 0 and drawn < 0.3:
            return F.cross_entropy(hidden, y)
        loss = F.cross_entropy(self.head(hidden), y)
        return None if batch_idx > 0 and drawn < 0.6 else loss


class Heads(BackboneHead):
    """Several heads in a list, on one backbone."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.head = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))])

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.backbone(x)
        return self.head[0](hidden) + self.head[1](hidden.clone())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden = self.backbone(x)
        return sum(F.cross_entropy(head(hidden.clone()), y) for head in self.head)


class LayerByLayer(Plain):
    """Wants the features before the last layer of its model."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        features = self.model[:-1](x)
        return F.cross_entropy(self.model[-1](features), y) + 1e-2 * features.abs().mean()


class Reconstructs(Plain):
    """Calls encoder and decoder, the encoder twice, and the whole in validation."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        z = self.model.encoder(x)
        out = self.model.decoder(z + 0.1 * torch.randn_like(z))
        loss = F.mse_loss(out, x) + 0.1 * F.mse_loss(self.model.encoder(out), z.detach())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        self.log("val_loss", F.mse_loss(self.model(x), x))


class Bounded(Plain):
    """A variational autoencoder, by the methods of its model."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        mean, log_variance = self.model.encode(x)
        out = self.model.decode(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        return F.mse_loss(out, x) + 0.01 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        self.log("val_loss", F.mse_loss(self.model(x)[0], x))


class BoundedForward(Bounded):
    """The same by a forward that returns three tensors."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        out, mean, log_variance = self.model(x)
        return F.mse_loss(out, x) + 0.01 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()


def _teacher() -> nn.Module:
    """The same for all members, whatever they have drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False).eval()


class Distills(Plain):
    """Learns from a frozen teacher, which all members have."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.teacher = _teacher()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        with torch.no_grad():
            taught = self.teacher(x)
            taught /= 2 + float(torch.rand(()))  # each member its own output
        out = self.model(x)
        return F.cross_entropy(out, y) + F.mse_loss(out, taught)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


class DistillsWithGrad(Distills):
    """Without `no_grad`: the teacher's outputs have no gradient, because it is frozen."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        taught, out = self.teacher(x), self.model(x)
        assert not taught.requires_grad
        return F.cross_entropy(out, y) + F.mse_loss(out, taught)


class Perceptual(Reconstructs):
    """Compares what a frozen network finds in the inputs and the outputs; the gradient passes through it."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.judge = _teacher()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        return F.mse_loss(self.judge(self.model.decoder(self.model.encoder(x))), self.judge(x))


class LateAverage(Distills):
    """Its teacher follows its student from the second epoch on, before it is asked."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.teacher[2] = nn.Identity()
        self.student = copy.deepcopy(self.teacher).requires_grad_(True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        if self.current_epoch == 1 and batch_idx == 3:
            for its, own in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                its.lerp_(own.detach(), 0.5)
        return F.mse_loss(self.student(x), 1 - self.teacher(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.student.parameters(), lr=self.lr)


class EarlyAverage(LateAverage):
    """Its teacher follows its student from the first step on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        loss = F.mse_loss(self.student(x), 1 - self.teacher(x))
        with torch.no_grad():
            for its, own in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                its.lerp_(own, 0.1)
        return loss
