"""Spaces whose models use a layer or a parameter more than once, as people write them."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from nasflow.space.pick import Pick

WIDTHS = [4, 6]


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


def _net(width: int, *body: nn.Module, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), activation(), *body, nn.Linear(width, 3))


def linear_twice(pick: Pick) -> nn.Module:
    width, activation = pick("width", WIDTHS), pick("activation", ["relu", "tanh"])
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh}
    return _net(width, Twice(nn.Linear(width, width)), activation=kinds[activation])


def in_sequential(pick: Pick) -> nn.Module:
    width = pick("width", WIDTHS)
    layer, activation = nn.Linear(width, width), nn.GELU()
    return _net(width, *[layer, activation] * pick("depth", [2, 3]))


def one_parameter(pick: Pick) -> nn.Module:
    width = pick("width", WIDTHS)
    first, second = nn.Linear(width, width), nn.Linear(width, width)
    second.weight = first.weight
    return _net(width, first, nn.Tanh(), second)


class Transposed(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.encoder, self.head = nn.Linear(6, width), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t()))


def transposed(pick: Pick) -> nn.Module:
    return Transposed(pick("width", WIDTHS))


def norm_twice(pick: Pick) -> nn.Module:
    width = pick("width", WIDTHS)
    return _net(width, Twice(nn.BatchNorm1d(width)))


class Images(nn.Module):
    def __init__(self, width: int, body: nn.Module):
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(1, width, 3, padding=1), body, nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(torch.relu(self.stem(x))).mean((2, 3)))


def conv_twice(pick: Pick) -> nn.Module:
    width, kernel = pick("width", [2, 4]), pick("kernel", [1, 3])
    return Images(width, Twice(nn.Conv2d(width, width, kernel, padding=kernel // 2)))


def image_block_for_all(pick: Pick) -> nn.Module:
    """Convolution and batch norm of one block, in every place of it."""
    width = pick("width", [2, 4])
    conv, norm, act = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return Images(width, nn.Sequential(*[conv, norm, act] * pick("depth", [2, 3])))


class Halves(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.encoder(x[:, :3]), self.encoder(x[:, 3:])], 1))


def halves(pick: Pick) -> nn.Module:
    return Halves(pick("width", WIDTHS))


class Scales(nn.Module):
    """One head on two scales."""

    def __init__(self, width: int):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(x).mean((2, 3)) + self.head(F.avg_pool2d(x, 2)).mean((2, 3))


def scales(pick: Pick) -> nn.Module:
    return Scales(pick("width", [2, 4]))


class Blocks(nn.Module):
    """One attention, norm and activation for every block."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.up, self.attention = nn.Linear(1, width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm, self.slope, self.head, self.depth = nn.LayerNorm(width), nn.PReLU(), nn.Linear(width, 3), depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x.unsqueeze(-1))
        for _ in range(self.depth):
            mixed, _weights = self.attention(x, x, x, need_weights=False)
            x = self.slope(self.norm(x + mixed))
        return self.head(x.mean(1))


def blocks(pick: Pick) -> nn.Module:
    return Blocks(pick("width", WIDTHS), pick("depth", [2, 3]))


class Words(nn.Module):
    """A tied embedding: its table is the output layer, too."""

    def __init__(self, width: int):
        super().__init__()
        self.table, self.mix, self.out = (
            nn.Embedding(7, width),
            nn.Linear(width, width),
            nn.Linear(width, 7, bias=False),
        )
        self.out.weight = self.table.weight
        self.head = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 2).long().clamp(-3, 3) + 3
        return self.head(torch.tanh(self.out(torch.tanh(self.mix(self.table(words).mean(1))))))


def words(pick: Pick) -> nn.Module:
    return Words(pick("width", WIDTHS))


class Target(nn.Module):
    """A frozen copy that forward moves towards the trained layer."""

    def __init__(self, width: int):
        super().__init__()
        self.online, self.target, self.head = nn.Linear(6, width), nn.Linear(6, width), nn.Linear(width, 3)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            for kept, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
                kept.data.mul_(0.5).add_(new.data, alpha=0.5)
        return self.head(torch.relu(self.online(x)) + self.target(x))


def moving_target(pick: Pick) -> nn.Module:
    return Target(pick("width", WIDTHS))


class TargetInNoGrad(Target):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.target.weight.lerp_(self.online.weight, 0.5)
        return self.head(torch.relu(self.online(x)) + self.target(x))


def moving_target_in_no_grad(pick: Pick) -> nn.Module:
    return TargetInNoGrad(pick("width", WIDTHS))


class TargetLayer(nn.Module):
    """The same as a layer of its own inside the model, which holds the trained one without registering it."""

    def __init__(self, online: nn.Linear):
        super().__init__()
        self.layer, self._online = nn.Linear(online.in_features, online.out_features), (online,)
        self.layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight.data.lerp_(self._online[0].weight.data, 0.3)
        return self.layer(x)


class HiddenTarget(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.online, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.target = TargetLayer(self.online)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.online(x)) + self.target(x))


def hidden_target(pick: Pick) -> nn.Module:
    return HiddenTarget(pick("width", WIDTHS))


class HiddenUse(nn.Module):
    """A module that can't be looked into trains a layer of another one, which it does not register."""

    def __init__(self, other: nn.Linear):
        super().__init__()
        self._other = (other,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._other[0](x) if float(x.sum()) > -1e9 else x


class Hidden(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem, self.layer, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.again = HiddenUse(self.layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(torch.tanh(self.layer(torch.relu(self.stem(x))))))


def hidden_use(pick: Pick) -> nn.Module:
    return Hidden(pick("width", WIDTHS))


def normed_twice(pick: Pick) -> nn.Module:
    """A weight under a parametrization, used twice."""
    width, norm = pick("width", WIDTHS), pick("norm", ["weight", "spectral"])
    parametrize = parametrizations.weight_norm if norm == "weight" else parametrizations.spectral_norm
    return _net(width, Twice(parametrize(nn.Linear(width, width))))


class Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cell, self.head, self.width = nn.RNNCell(2, width), nn.Linear(width, 3), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], self.width)
        for step in x.view(-1, 3, 2).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


def cell_in_a_loop(pick: Pick) -> nn.Module:
    return Recurrent(pick("width", WIDTHS))


class Unlike(nn.Module):
    """One layer, called as often as this member likes, in another place each time."""

    def __init__(self, width: int, calls: int, before: bool):
        super().__init__()
        self.stem, self.layer, self.other = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head, self.calls, self.before = nn.Linear(width, 3), calls, before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        if self.before:
            x = torch.relu(self.other(x))
        for _ in range(self.calls):
            x = x + torch.tanh(self.layer(x))
        return self.head(x if self.before else self.other(x))


def unlike(pick: Pick) -> nn.Module:
    return Unlike(4, pick("calls", [1, 2, 3]), pick("before", [True, False]))
