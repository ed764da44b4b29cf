"""Nets that strangers write with dropout, and steps on them."""

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.training.models.spaces import rows


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self, width: int, between: nn.Module, first: nn.Module | None = None):
        super().__init__()
        self.first, self.between, self.last = first or nn.Linear(6, width), between, nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(torch.tanh(self.first(x))))


class Twice(nn.Module):
    """One dropout, first for what has the same shape in all members, then for what has not."""

    def __init__(self, width: int, p: float):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(6, width), nn.Linear(width, 1), nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(self.drop(x)))))


class Own(nn.Dropout):
    """A subclass."""


class Called(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], torch.Tensor], *parts: nn.Module):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


class Hidden(nn.Module):
    """A layer that torch does not see."""

    def __init__(self, p: float):
        super().__init__()
        self.layers = [nn.Dropout(p)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


class Fixed(nn.Module):
    """Keeps its dropout in one mode."""

    def __init__(self, p: float, on: bool):
        super().__init__()
        self.drop, self.on = nn.Dropout(p), on
        self.train()

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.drop.train(self.on)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


class Reads(nn.Module):
    """Reads its input after dropout in place."""

    def __init__(self, p: float):
        super().__init__()
        self.drop = nn.Dropout(p, inplace=p == 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return self.drop(y) + y


class Attention(nn.Module):
    """torch's function, with dropout before it, and perhaps in it."""

    def __init__(self, width: int, p: float, inner: float):
        super().__init__()
        self.key, self.drop, self.inner = nn.Linear(width, width), nn.Dropout(p), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.key(x)).view(-1, 2, x.shape[-1] // 2)
        return F.scaled_dot_product_attention(y, y, y, dropout_p=self.inner if self.training else 0.0).flatten(1)


class Recurrent(nn.Module):
    """Two layers of cells."""

    def __init__(self, width: int, p: float, inner: float):
        super().__init__()
        self.cells, self.drop = nn.LSTM(width // 2, width // 2, 2, batch_first=True, dropout=inner), nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.cells(x.view(x.size(0), 2, -1))[0]).flatten(1)


class Encoder(nn.Module):
    """One of torch's layers that has layers of dropout; its attention drops nothing."""

    def __init__(self, width: int, p: float):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width // 2, 2, 8, p, batch_first=True)
        self.layer.self_attn.dropout = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(x.size(0), 2, -1)).flatten(1)


class Again(nn.Module):
    """Computes its layers again in the backward."""

    def __init__(self, width: int, p: float, reentrant: bool = False):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(p), nn.Linear(width, width))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Raises(nn.Module):
    """Gives up in its second epoch, if it is bad."""

    def __init__(self, p: float, bad: bool):
        super().__init__()
        self.drop, self.bad, self.calls = nn.Dropout(p), bad, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        if self.bad and self.calls > 4:
            raise RuntimeError("gave up")
        return self.drop(x)


def shared(width: int, p: float) -> nn.Module:
    drop = nn.Dropout(p)
    return nn.Sequential(nn.Linear(6, width), drop, nn.Linear(width, 5), drop, nn.Linear(5, 1))


def copied(width: int, p: float) -> nn.Module:
    block = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(p))
    return nn.Sequential(nn.Linear(6, width), copy.deepcopy(block), copy.deepcopy(block), block, nn.Linear(width, 1))


def patched(p: float) -> nn.Module:
    layer = nn.Dropout(p)
    layer.forward = MethodType(lambda self, x: x * 2 if self.training else x, layer)  # type: ignore[method-assign]
    return layer


def hooked(p: float) -> nn.Module:
    layer = nn.Dropout(p)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


def dropped_weights(width: int, p: float) -> nn.Module:
    layer = nn.Linear(width, width)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Dropout(p))
    return layer


def frozen(make: Callable[[], nn.Module]) -> nn.Module:
    """With the same weights in all members."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make().requires_grad_(False)


def trunk(width: int) -> nn.Module:
    return frozen(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, width)))


KINDS: dict[str, Callable[[int, float], nn.Module]] = {
    "twice": Twice,
    "shared": shared,
    "copied": copied,
    "lazy": lambda width, p: nn.Sequential(nn.LazyLinear(width), nn.Dropout(p), nn.LazyLinear(1)),
    "first": lambda width, p: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1)),
    "some": lambda width, p: Net(width, nn.Dropout(p) if p > 0.4 else nn.Tanh()),
    "ends": lambda width, p: Net(width, nn.Dropout(float(p > 0.4))),
    "in place": lambda width, p: Net(width, Reads(p)),
    "off": lambda width, p: Net(width, Fixed(p, False)),
    "on": lambda width, p: Net(width, Fixed(p, True)),
    "frozen": lambda width, p: Net(width, nn.Dropout(p), frozen(lambda: nn.Linear(6, width))),
    "frozen in training": lambda width, p: Net(width, nn.Dropout(p), trunk(width)),
    "frozen in evaluation": lambda width, p: Net(width, nn.Dropout(p), trunk(width).eval()),
    "weights": lambda width, p: Net(width, dropped_weights(width, p)),
    "spectral": lambda w, p: Net(w, nn.Dropout(p), nn.utils.parametrizations.spectral_norm(nn.Linear(6, w))),
    "norm": lambda width, p: Net(width, nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(p))),
    "stateless": lambda w, p: Net(w, nn.Sequential(nn.BatchNorm1d(w, track_running_stats=False), nn.Dropout(p))),
    "attention": lambda width, p: Net(width, Attention(width, p, 0.0)),
    "recurrent": lambda width, p: Net(width, Recurrent(width, p, 0.0)),
    "encoder": lambda width, p: Net(width, Encoder(width, p)),
    "subclass": lambda width, p: Net(width, Own(p)),
    "function": lambda width, p: Net(width, Called(lambda self, x: F.dropout(x, p, self.training))),
    "channels": lambda w, p: Net(w, nn.Sequential(nn.Unflatten(1, (2, -1)), nn.Dropout1d(p), nn.Flatten())),
    "images": lambda w, p: Net(w, nn.Sequential(nn.Unflatten(1, (2, 2, -1)), nn.Dropout2d(p), nn.Flatten())),
    "alpha": lambda width, p: Net(width, nn.AlphaDropout(p)),
    "attention that drops": lambda width, p: Net(width, Attention(width, p, 0.3)),
    "recurrent that drops": lambda width, p: Net(width, Recurrent(width, p, 0.3)),
    "cumulative": lambda w, p: Net(w, nn.Sequential(nn.BatchNorm1d(w, momentum=None), nn.Dropout(p))),
    "hidden": lambda width, p: Net(width, Hidden(p)),
    "patched": lambda width, p: Net(width, patched(p)),
    "hooked": lambda width, p: Net(width, hooked(p)),
    "again": lambda width, p: Net(width, Again(width, p)),
    "raises": lambda width, p: Net(width, Raises(p, width == 4)),
}


def net(pick: Any) -> nn.Module:
    """Any of them."""
    made = KINDS[pick("kind", list(KINDS))](pick("width", [4, 8]), pick("p", [0.0, 0.2, 0.5, 0.7]))
    classes = pick("classes", [1, 3, 4])
    return made if classes == 1 else nn.Sequential(made, nn.Tanh(), nn.Linear(1, classes))


def sizes() -> tuple[DataLoader, DataLoader]:
    """Batches of more sizes than are captured."""
    x, y = rows()
    target = x.sum(1) + y
    starts = [(0, 24), (24, 44), (44, 60), (0, 12), (12, 22), (22, 28)]
    batches = [list(range(*places)) for places in starts]
    training, validation = TensorDataset(x[:64], target[:64]), TensorDataset(x[64:], target[64:])
    return DataLoader(training, batch_sampler=batches), DataLoader(validation, 12)


class Steps(LightningModule):
    """Steps of several kinds."""

    def __init__(self, model: nn.Module, how: str):
        super().__init__()
        self.model, self.how, self.drop = model, how, nn.Dropout(0.3)
        self.teacher = copy.deepcopy(model).requires_grad_(False) if how == "teacher" else None

    def on_train_epoch_start(self) -> None:
        if self.how == "rate":
            for part in self.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.1 * (self.current_epoch + 1)

    def on_validation_epoch_start(self) -> None:
        if self.how == "monte carlo":
            self.model.apply(lambda part: part.train() if isinstance(part, nn.Dropout) else None)

    def on_train_batch_end(self, *args: Any) -> None:
        if self.teacher is not None:
            with torch.no_grad():
                for old, new in zip(self.teacher.parameters(), self.model.parameters(), strict=True):
                    old.lerp_(new, 0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out, extra = self.model(x), torch.zeros(())
        if self.how == "step":
            out = self.drop(out)
        elif self.how == "checkpoint":
            out = out + checkpoint(self.model, x, use_reentrant=False)
        elif self.how == "twice":
            extra = F.mse_loss(out, self.model(x))
        elif self.teacher is not None:
            extra = F.mse_loss(out, self.teacher.train()(x))
        elif self.how == "transform":
            own = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
            found = grad(lambda weight: functional_call(self.model, weight, (x,)).square().mean())(own)
            extra = sum(value.square().sum() for value in found.values())
        loss = F.mse_loss(out.squeeze(1), y) + extra
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.mse_loss(self.model(x).squeeze(1), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([parameter for parameter in self.parameters() if parameter.requires_grad], 0.01)
