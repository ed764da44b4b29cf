"""Members whose parameters lie side by side, each with a twin that torch trains alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nasflow.training.optim.stacked import Clip, Stack, StackedOptimizer

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
CHANNELS_LAST = (4, 3, 3, 2)  # rows of this shape lie channels last


@dataclass(frozen=True)
class Layer:
    """Parameters of one shape, one of each of some members."""

    shape: tuple[int, ...]
    members: tuple[int, ...]
    rows: bool = True


@dataclass
class Twins:
    """One parameter in the unit and alone, and what its random numbers follow from."""

    member: int
    name: str
    joint: nn.Parameter
    solo: nn.Parameter

    def draw(self, step: int) -> torch.Tensor:
        """Numbers for it that do not depend on who else is in the unit."""
        return draw(f"{self.name} of {self.member} at {step}", self.solo)


def draw(seed: str, like: torch.Tensor) -> torch.Tensor:
    """Normal numbers of the layout and type of a tensor."""
    generator = torch.Generator().manual_seed(int.from_bytes(seed.encode()) % 2**62)
    return torch.empty_like(like, requires_grad=False).copy_(torch.randn(like.shape, generator=generator))


class Unit:
    """A StackedOptimizer and the twins of its members.

    Args:
        makes: each member's optimizer.
        clips: one a member; None for none at all.
        numbers: the members' own numbers, from which their random numbers follow; their positions if None.
    """

    def __init__(
        self,
        makes: Sequence[Make],
        layers: Sequence[Layer],
        clips: Sequence[Clip | None] | None = None,
        dtype: torch.dtype = torch.float64,
        numbers: Sequence[int] | None = None,
        **options: Any,
    ):
        self.clips = list(clips or [None] * len(makes))
        self.numbers = list(numbers or range(len(makes)))
        self.twins: list[list[Twins]] = [[] for _ in makes]
        self.stacks = [self._lay(f"layer {i}", layer, dtype) for i, layer in enumerate(layers)]
        self.joint = [make([twin.joint for twin in of]) for make, of in zip(makes, self.twins, strict=True)]
        self.solo = [make([twin.solo for twin in of]) for make, of in zip(makes, self.twins, strict=True)]
        self.options = options
        self.steps = 0
        self.rebuild()

    def rebuild(self) -> None:
        """Lay the optimizers side by side, with the state they have."""
        self.optimizer = StackedOptimizer(self.joint, self.stacks, self.clips, **self.options)

    def evict(self, member: int) -> None:
        """Go on without a member, all laid side by side anew; positions behind it move up by one."""
        for of in (self.twins, self.joint, self.solo, self.clips, self.numbers):
            del of[member]
        stacks = []
        for stack in self.stacks:
            rows = [(p, m - (m > member)) for p, m in zip(stack.parameters, stack.members, strict=True) if m != member]
            tensor = torch.stack([parameter.detach() for parameter, _ in rows])
            for i, (parameter, _) in enumerate(rows):
                parameter.data = tensor[i]
            parameters, members = zip(*rows, strict=True)
            stacks.append(Stack(tensor.requires_grad_(), parameters, members))
        self.stacks = stacks
        self.rebuild()

    def _lay(self, name: str, layer: Layer, dtype: torch.dtype) -> Stack:
        like = torch.empty(layer.shape, dtype=dtype)
        if layer.shape == CHANNELS_LAST:
            like = like.contiguous(memory_format=torch.channels_last)
        rows = [draw(f"{name} of {self.numbers[member]}", like) for member in layer.members]
        if not layer.rows:
            joint = [nn.Parameter(rows[0].clone())]
            tensor: torch.Tensor = joint[0]
        else:
            size = max(like.numel(), 1)
            tensor = torch.empty(0, dtype=dtype).new_empty(len(rows) * size)
            tensor = tensor.as_strided((len(rows), *like.shape), (size, *like.stride()))
            tensor.copy_(torch.stack(rows))
            joint = [nn.Parameter(tensor[i]) for i in range(len(rows))]
            for i, parameter in enumerate(joint):
                parameter.data = tensor[i]
            tensor.requires_grad_()
        for member, parameter, row in zip(layer.members, joint, rows, strict=True):
            self.twins[member].append(Twins(self.numbers[member], name, parameter, nn.Parameter(row)))
        return Stack(tensor, tuple(joint), layer.members, rows=layer.rows)

    def give_grads(self, absent: Sequence[int] = (), factors: dict[int, float] | None = None) -> None:
        """New gradients, but for some stacks; `factors` go into those of some members."""
        twin_of = {twin.joint: twin for of in self.twins for twin in of}
        for i, stack in enumerate(self.stacks):
            grads = []
            for parameter, member in zip(stack.parameters, stack.members, strict=True):
                twin = twin_of[parameter]
                grad = twin.draw(self.steps) * (factors or {}).get(member, 1.0)
                twin.solo.grad = None if i in absent else grad
                grads.append(grad)
            stack.tensor.grad = None
            if i not in absent:
                stack.tensor.grad = torch.empty_like(stack.tensor).copy_(torch.stack(grads) if stack.rows else grads[0])

    def step(self) -> None:
        """Step all members together, and their twins alone."""
        self.optimizer.step()
        self.steps += 1
        for i, optimizer in enumerate(self.solo):
            clip = self.clips[i]
            parameters = [twin.solo for twin in self.twins[i] if twin.solo.grad is not None]
            if clip is not None and clip.algorithm == "norm":
                torch.nn.utils.clip_grad_norm_(parameters, clip.limit)
            elif clip is not None and parameters:
                torch.nn.utils.clip_grad_value_(parameters, clip.limit)
            optimizer.step()

    def set(self, change: Callable[[int, dict[str, Any]], None]) -> None:
        """Change the param groups of members and twins, as a schedule does: `change(member, group)`."""
        for optimizers in (self.joint, self.solo):
            for member, optimizer in enumerate(optimizers):
                for group in optimizer.param_groups:
                    change(member, group)
        self.optimizer.refresh()

    def check(self, tolerance: float = 1e-12, members: Sequence[int] | None = None) -> None:
        """The members (or all) are where their twins are, and their optimizers keep the same in the same form."""
        for member in range(len(self.twins)) if members is None else members:
            joint, solo = self.joint[member], self.solo[member]
            for twin in self.twins[member]:
                torch.testing.assert_close(twin.joint, twin.solo, rtol=tolerance, atol=tolerance, equal_nan=True)
            same_state(joint.state_dict(), solo.state_dict(), tolerance)


def same_state(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-12) -> None:
    """Two state dicts of optimizers have the same keys, and tensors of the same type, layout and values."""
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for key, kept in one["state"].items():
        assert list(kept) == list(other["state"][key])
        for name, value in kept.items():
            expected = other["state"][key][name]
            torch.testing.assert_close(
                value, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=True
            )
