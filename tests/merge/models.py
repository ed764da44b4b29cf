"""Small models in the many ways in which people write them."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# --- images [B, 3, 6, 6] -> [B, 4] -------------------------------------------------------------------------------


class Residual(nn.Module):
    """`x + layers(x)`, then an activation, as in torchvision: `out += x`, and the activation in place."""

    def __init__(self, channels: int, inplace: bool = True, norm: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.bn = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn(self.conv(x))
        out += x
        return self.relu(out)


class Gated(nn.Module):
    """Branches that are multiplied, subtracted and scaled, then concatenated."""

    def __init__(self, channels: int):
        super().__init__()
        self.left = nn.Conv2d(channels, channels, 1)
        self.right = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), torch.sigmoid(self.right(x))
        return torch.cat([left * right, right - x, 1.5 - left, left / 2], 1)


class Functional(nn.Module):
    """Everything by functions, with the sizes asked of the tensor."""

    def __init__(self, p: float = 0.0, width: int = 4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3)
        self.fc = nn.Linear(width * 4, 4)
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.gelu(self.conv2(x), approximate="tanh")
        x = F.max_pool2d(x, 2)
        x = x.view(x.size(0), -1)
        x = F.dropout(x, self.p, self.training)
        return self.fc(x)


class SpatialMean(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.fc = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.conv(x)).mean(dim=(2, 3)))


class Excited(nn.Module):
    """Squeeze and excitation, scaled by broadcasting."""

    def __init__(self, channels: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.up = nn.Linear(channels, 2), nn.Linear(2, channels)
        self.head = nn.Linear(channels, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        batch, channels = x.shape[0], x.shape[1]
        scale = torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3))))))
        x = x * scale.view(batch, channels, 1, 1)
        return self.head(x.flatten(2).amax(-1))


class Split(nn.Module):
    """Halves of the channels, one of which goes through a convolution, shuffled together again."""

    def __init__(self, channels: int = 4):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 1)
        self.branch = nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=channels // 2)
        self.head = nn.Linear(channels * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.stem(x).chunk(2, dim=1)
        x = torch.stack([a, self.branch(b)], dim=2).transpose(1, 2)
        return self.head(x.reshape(x.shape[0], -1))


# --- rows [B, 8] -> [B, 4] ---------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.relu(self.first(x)))))


class Twice(nn.Module):
    """One layer and one batch norm, called twice; the second branch is the longer one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        long = self.norm(torch.tanh(torch.relu(self.layer(x))))
        return self.head(long + self.norm(self.layer(x)))


class Attribute(nn.Module):
    """Parameters and buffers that the module itself holds."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.arange(8.0) if buffer else torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear((x - self.shift) * self.scale, self.weight)


class Stopped(nn.Module):
    """A trunk that the head's gradients do not reach, or do."""

    def __init__(self, stop: bool):
        super().__init__()
        self.trunk, self.head, self.stop = nn.Linear(8, 8), nn.Linear(8, 4), stop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.trunk(x)
        return self.head(x.detach() if self.stop else x)


class StoppedAfter(nn.Module):
    """A trunk whose activation the gradients do not reach, or an activation in that place."""

    def __init__(self, stop: bool):
        super().__init__()
        self.trunk, self.head, self.stop = nn.Linear(8, 8), nn.Linear(8, 4), stop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.trunk(x))
        return self.head(x.detach() if self.stop else torch.sin(x))


class Unused(nn.Module):
    """Calls a layer in vain, or not."""

    def __init__(self, used: bool):
        super().__init__()
        self.extra, self.norm, self.head, self.used = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4), used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = self.norm(self.extra(x))
        return self.head(extra if self.used else x)


class Frozen(nn.Module):
    """A trunk of fixed weights in eval mode, and a head."""

    def __init__(self, seed: int = 5, width: int = 8, calls: list[int] | None = None):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        for tensor in [*self.trunk.parameters(), *self.trunk.buffers()]:
            if tensor.is_floating_point():
                tensor.data = torch.rand(tensor.shape, generator=generator)
        self.trunk.requires_grad_(False).eval()
        for part in self.trunk.modules():
            part.stays = True  # type: ignore[assignment]
        self.adapter, self.head = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.adapter(self.trunk(x))))


class Dictionary(nn.Module):
    """Passes dicts, tuples and optional values from module to module."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, scale: float) -> dict[str, Any]:
            a = self.a(x)
            return {"pair": (a, self.b(a)), "scaled": a * scale}

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = self.Inner(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x, scale=0.5)
        _, short = found["pair"]
        return self.head(found["scaled"]) + short


# --- sequences [B, 5, 8] -> [B, 4] -------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Attention and a feed-forward block before their norms, dropout between them."""

    def __init__(self, heads: int = 2, p: float = 0.0, bias: bool = True, needs: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8, bias=bias)
        self.attention = nn.MultiheadAttention(8, heads, batch_first=True, bias=bias)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(p), nn.Linear(12, 8))
        self.head, self.needs = nn.Linear(8, 4), needs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, need_weights=self.needs)
        x = x + y
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int = 4):
        super().__init__()
        self.rnn, self.head = kind(8, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, _ = self.rnn(x)
        return self.head(output[:, -1])


class Sequence1d(nn.Module):
    """Convolutions along the sequence, with transposes before and after, and dropout on what is transposed."""

    def __init__(self, kernel: int = 3, p: float = 0.0, **options: Any):
        super().__init__()
        self.conv = nn.Conv1d(8, 6, kernel, **options)
        self.norm, self.drop, self.head = nn.BatchNorm1d(6), nn.Dropout(p), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x.transpose(1, 2)))).permute(0, 2, 1)
        return self.head(self.drop(x)).sum(1)


# --- words [B, 5] -> [B, 4] --------------------------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self, width: int = 8, tied: bool = False, **options: Any):
        super().__init__()
        self.table = nn.Embedding(11, width, **options)
        self.mix, self.head, self.tied = nn.Linear(width, width), nn.Linear(11 if tied else width, 4), tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mix(self.table(x))).mean(1)
        return self.head(F.linear(x, self.table.weight) if self.tied else x)
