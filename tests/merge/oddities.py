"""Models that do what a trace can't see, or can't keep: rows [B, 8] -> [B, 4]."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Odd(nn.Module):
    """`head(self.odd(body(x)))`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.odd(self.body(x)))

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Counting(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class CountingInContainers(Odd):
    """In what a shallow look at the attributes does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Any] = {"calls": [0]}

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        self.state["calls"].append(1)
        return x * len(self.state["calls"])


class Remembering(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.last: deque[int] = deque(maxlen=3)
        self.seen: set[int] = set()

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(len(self.last))
        self.seen.add(len(self.seen))
        return x * (len(self.last) + len(self.seen))


class Branching(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class BySize(Odd):
    """A last, smaller batch goes another way."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 5 else x - 1


class Looking(Odd):
    """Has no graph, but a plain value from one."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + abs(float(x.detach().mean())))


def fixed(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A helper of no class."""
    with torch.no_grad():
        return layer(x)


class WithoutGradients(nn.Module):
    def __init__(self, how: str):
        super().__init__()
        self.trunk, self.head, self.how = nn.Linear(8, 8), nn.Linear(8, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "helper":
            return self.head(fixed(self.trunk, x))
        if self.how == "decorated":
            return self.head(self.decorated(x))
        with torch.inference_mode():
            x = self.trunk(x)
        return self.head(x.clone())

    @torch.no_grad()
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk(x)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return -grads[0]


class Silent(torch.autograd.Function):
    """Calls nothing in its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 3 * grads[0]


reverse, silent = Reversal.apply, Silent.apply


def reversing(x: torch.Tensor) -> torch.Tensor:
    return reverse(x)


class OwnGradients(Odd):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.function = function

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class SilentGradients(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return silent(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())
        self.first, self.head, self.reentrant = nn.Linear(8, 8), nn.Linear(8, 4), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.layers, self.first(x), use_reentrant=self.reentrant))


class Rounded(Odd):
    """A part of it in another precision."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x.float() @ torch.ones(8, 8)).double()


class Varied(Odd):
    def forward(self, *args: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.head(torch.tanh(self.body(args[0])))


def thinned(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Asks another for its mode."""
    return F.dropout(x, 0.3, module.training)


class ModeElsewhere(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return thinned(self, x)


class ModeOfAPart(Odd):
    """Other operations in training than in evaluation."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.body.training else x * 2


class Drawing(Odd):
    """Draws with Python's, NumPy's and torch's generators, and does something else each time."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        draw = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1).item()}[self.how]
        return x * 2 if draw() < 0.5 else x - 1


class Noise(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.size(0), 8, dtype=torch.float64) * torch.rand_like(x)
        F.dropout(x, 0.5, training=True)  # nobody reads it, but it draws
        return x + noise + F.dropout(torch.ones_like(x), 0.5)


class Aliased(Odd):
    """Two names of a tensor, one of which is written through."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y
        y += 1
        return z * y


class ThroughIdentity(Odd):
    """A layer in place on what another gave on unchanged."""

    def __init__(self, skip: nn.Module):
        super().__init__()
        self.skip, self.relu = skip, nn.ReLU(inplace=True)

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.relu(self.skip(x))


class OnTheBatch(nn.Module):
    """Writes into the batch, which others read too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class OnAHalf(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        left, _ = y.chunk(2, 1)
        left.mul_(3)
        return y


class Indexed(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 0] = 0
        return y


class GivenRoom(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        room = torch.zeros_like(x).detach()
        torch.add(x.detach(), 1, out=room)
        return x * room


class InPlace(Odd):
    """In place in all spellings, on what nothing else reads."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(x * 2)
        x = F.leaky_relu(x - 1, 0.1, True)
        x = F.relu(x + 1, inplace=True)
        x = (x * 2).sigmoid_() - 1
        x = (x - 1).mul_(3)
        x = F.elu_(x - 1) * 2
        x -= 0.5
        x *= 2
        x /= 3
        return F.dropout(x * 2, 0.3, self.training, True)


class Updating(Odd):
    """A buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x


class Replacing(Updating):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        self.steps = self.steps * 0.9 + x.detach().mean()
        return x + self.steps


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x[:, :4], x[:, 4:])


class Named(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        halves = self.halves(x)
        return torch.cat([halves.right, halves.left], 1)


class Constants(Odd):
    """Tensors that are neither parameters nor buffers, and some made on the spot."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.arange(8.0, dtype=torch.float64)

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.plain + torch.tensor([0.5] * 8, dtype=torch.float64) + torch.arange(x.size(1))
        largest = x.max(1)
        return x * largest.values.unsqueeze(1) + largest[1].unsqueeze(-1)


class Several(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x)), x


class HardCoded(Odd):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(6, 8)


class CallsTwice(Odd):
    """`out[0]` read twice, and once, of a layer that gives a tuple."""

    def __init__(self, twice: bool):
        super().__init__()
        self.attention, self.twice = nn.MultiheadAttention(8, 2, batch_first=True), twice

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unsqueeze(1)
        found = self.attention(x, x, x, need_weights=False)
        return (found[0] + found[0] if self.twice else found[0]).squeeze(1)


def hooked(where: str) -> nn.Module:
    """Hooks on layers, containers, modules, parameters."""
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), Stop(), nn.Linear(8, 4))
    match where:
        case "layer":
            model[0][0].register_forward_hook(lambda module, args, output: output * 2)
        case "container":
            model[0].register_forward_hook(lambda module, args, output: output * 2)
        case "module":
            model[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        case "root":
            model.register_forward_hook(lambda module, args, output: output * 2)
        case "backward":
            model[2].register_full_backward_hook(lambda module, before, after: (before[0] * 2,))
        case "parameter":
            model[0][0].weight.register_hook(lambda grad: grad * 2)
        case "accumulated":
            model[2].weight.register_post_accumulate_grad_hook(doubled)
        case "forward":
            own = model[0][0].forward
            model[0][0].forward = lambda x: own(x) * 2
        case "sequential forward":
            first = model[0].forward
            model[0].forward = lambda x: first(x) * 2
    return model


def doubled(parameter: torch.Tensor) -> None:
    parameter.grad *= 2


class Stop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def normed(old: bool) -> nn.Module:
    """A weight that is computed from others."""
    layer = nn.Linear(8, 8)
    norm = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(layer), nn.Tanh(), nn.Linear(8, 4))
