"""Modules for random models, beside torch's own: code that takes more than one line."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block, as people write it."""

    def __init__(self, width: int, activation: nn.Module):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(width, width), activation, nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.act(self.first(x)))


class SometimesUsed(nn.Module):
    """A layer that only whole batches see: in others it gets no gradient."""

    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.shape[0] == 6 else x


class Hypernetwork(nn.Module):
    """A layer with weights that another layer computes."""

    def __init__(self, width: int):
        super().__init__()
        self.code, self.maker = nn.Parameter(torch.rand(3)), nn.Linear(3, width * width)
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.maker(self.code).view(self.width, self.width))


class Looks(nn.Module):
    """Chooses a branch by the values it reads."""

    def __init__(self, width: int):
        super().__init__()
        self.yes, self.no = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.yes(x) if x.mean() > 0.05 else self.no(x)  # a mean of zero but for rounding is not


class Pairs(nn.Module):
    """Passes a dict and a tuple to other modules."""

    class Inner(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: torch.Tensor, scale: float) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
            a = self.a(x)
            return {"pair": (a * scale, self.b(a))}

    def __init__(self, width: int):
        super().__init__()
        self.inner = self.Inner(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.inner(x, scale=0.5)["pair"]
        return a + b


class Renormalized(nn.Module):
    """One weight used by two branches, the longer of which is used again."""

    def __init__(self, width: int):
        super().__init__()
        self.layer, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        long = self.norm(torch.tanh(torch.relu(self.layer(x))))
        return long + self.norm(self.layer(x))


class Cells(nn.Module):
    """A recurrent cell, step by step."""

    def __init__(self, cell: nn.Module, steps: int):
        super().__init__()
        self.cell, self.steps = cell, steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.cell(x)
        for _ in range(self.steps):
            state = self.cell(x, state)
        return state


class Along(nn.Module):
    """A recurrent cell along a sequence."""

    def __init__(self, cell: nn.RNNCellBase):
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.cell(x[:, 0])
        for step in range(1, x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


class Last(nn.Module):
    """A recurrent layer of torch's, of which the last output counts."""

    def __init__(self, layer: nn.RNNBase):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, _ = self.layer(x)
        return output[:, -1]


class Slope(nn.Module):
    """Asks for a gradient in its forward."""

    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            [slope] = torch.autograd.grad(torch.tanh(self.layer(point)).sum(), point)
        return self.layer(x) + slope.detach()


class Shrinks(nn.Module):
    """Writes its parameter in training."""

    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.layer.weight.mul_(0.99)
        return self.layer(x)


class Counts(nn.Module):
    """Computes something else in every call, by a counter that is not a buffer."""

    def __init__(self, width: int):
        super().__init__()
        self.calls = 0
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            self.calls += 1
        return self.layer(x) * (1 + 0.1 * self.calls)


class Fails(nn.Module):
    """Raises in its training call number `after`, or gives NaN."""

    def __init__(self, after: int, raises: bool):
        super().__init__()
        self.after, self.raises, self.calls = after, raises, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        self.calls += 1
        if self.calls != self.after:
            return x
        if self.raises:
            raise ValueError("a layer gave up")
        return x * float("nan")
