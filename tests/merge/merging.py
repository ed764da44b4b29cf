"""Members merged, each beside a twin that plain PyTorch trains alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nasflow.merge.planning.logical_plan import LogicalPlan, Pass
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.graph import Graph, trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.parameter_stacks import LeftError
from nasflow.training.member.rng import RngStream

LR = 0.05
Make = Callable[[], nn.Module]


def images(batch: int = 6, channels: int = 3, size: int = 6, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """`[batch, channels, size, size]`."""
    return _numbers((batch, channels, size, size), dtype)


def rows(batch: int = 6, features: int = 8, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """`[batch, features]`."""
    return _numbers((batch, features), dtype)


def sequences(batch: int = 6, length: int = 5, width: int = 8, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """`[batch, length, width]`."""
    return _numbers((batch, length, width), dtype)


def tokens(batch: int = 6, length: int = 5, words: int = 11) -> torch.Tensor:
    """Words `[batch, length]`."""
    return torch.randint(words, (batch, length), generator=torch.Generator().manual_seed(batch))


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]), dtype=torch.float64).to(dtype)


def build(make: Make, seed: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model with weights that follow from the seed, and nothing zero that starts as zero."""
    with RngStream(seed):
        model = make().to(dtype)
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.data.add_(0.1 * torch.rand(tensor.shape, dtype=torch.float64))
    return model


@dataclass
class Group:
    """Models as the members of one merged model.

    Attributes:
        models: of the members.
        twins: others just like them.
        failures: what members' own code raised, by position.
    """

    models: list[nn.Module]
    twins: list[nn.Module]
    x: torch.Tensor
    passes: Sequence[Pass] = ()
    failures: dict[int, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graphs: list[Graph] = [trace(model, Spec.batch(self.x)) for model in self.models]
        self.plan: LogicalPlan = Planner(self.passes).plan(self.graphs)
        self.streams = [RngStream(70 + member) for member in range(len(self.models))]
        self.twin_streams = [RngStream(70 + member) for member in range(len(self.models))]
        self.merged = MergedModel(
            self.plan, self.streams, [stream.generator for stream in self.streams], self._own_code
        )

    def _own_code(self, member: int, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except (Exception, SystemExit) as error:
            self.failures[member] = error
            raise LeftError from error

    @property
    def kernels(self) -> set[str]:
        """The names of the kernels that run more than one member."""
        return {batch.kernel.__name__ for batch in self.plan.batches if len(batch.operations) > 1 and batch.kernel}

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """One step of plain gradient descent of all members together; their outputs `[n, B, ...]`."""
        outputs = self.merged(x.clone(), True)
        loss = sum(_loss(output) for output in outputs)
        for tensor in self._trained():
            tensor.grad = None
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.backward()
        with torch.no_grad():
            for tensor in self._trained():
                if tensor.grad is not None:
                    tensor.sub_(LR * tensor.grad)
        return outputs.detach()

    def gradients(self) -> dict[nn.Parameter, torch.Tensor | None]:
        """Of the members' parameters, after a step."""
        found: dict[nn.Parameter, torch.Tensor | None] = {
            p: p.grad for model in self.models for p in model.parameters()
        }
        for stack in self.merged.stacks:
            grads = [None] * len(stack.parameters) if stack.tensor.grad is None else stack.tensor.grad
            found.update(zip(stack.parameters, grads, strict=True))
        return found

    def modes(self, training: bool) -> None:
        """Train or evaluate, layers that are frozen in eval mode left there."""
        for models in (self.models, self.twins):
            for model in models:
                for part in model.modules():
                    part.training = training and not getattr(part, "stays", False)

    def _trained(self) -> Iterator[torch.Tensor]:
        placed = {parameter for stack in self.merged.stacks for parameter in stack.parameters}
        yield from (stack.tensor for stack in self.merged.stacks)
        yield from (p for model in self.models for p in model.parameters() if p not in placed and p.requires_grad)


def _loss(output: torch.Tensor) -> torch.Tensor:
    """A scalar that weighs each number differently."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return (output * weights).sum() + 0.1 * output.square().sum()


def twin_step(model: nn.Module, x: torch.Tensor, stream: RngStream) -> torch.Tensor:
    """The same of one model alone, as plain PyTorch."""
    with stream:
        output: torch.Tensor = model(x.clone())
    model.zero_grad()
    if output.requires_grad:
        _loss(output).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(LR * parameter.grad)
    return output.detach()


def check(
    makes: Sequence[Make],
    x: torch.Tensor,
    *others: torch.Tensor,
    steps: int = 2,
    tolerance: float = 1e-10,
    **options: Any,
) -> Group:
    """Merged and alone are the same: outputs, gradients, weights, buffers and streams, in training and in eval mode.

    Args:
        others: batches of other sizes, after the traced one.
    """
    dtype = x.dtype if x.is_floating_point() else torch.float64
    models, twins = ([build(make, seed, dtype) for seed, make in enumerate(makes)] for _ in range(2))
    group = Group(models, twins, x, **options)
    close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    for batch in (*[x] * steps, *others):
        group.modes(training=True)
        outputs = group.step(batch)
        grads = group.gradients()
        for member, (model, twin) in enumerate(zip(group.models, group.twins, strict=True)):
            own = twin_step(twin, batch, group.twin_streams[member])
            torch.testing.assert_close(outputs[member], own, **close)
            for (name, parameter), (_, other) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
                _same_gradient(name, grads[parameter], other.grad, close)
                torch.testing.assert_close(parameter.data, other.data, **close, msg=lambda m, n=name: f"{n}: {m}")
            for (name, buffer), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
                torch.testing.assert_close(buffer, other, **close, msg=lambda m, n=name: f"{n}: {m}")
            mine, its = group.streams[member].state_dict(), group.twin_streams[member].state_dict()
            assert torch.equal(mine["torch"], its["torch"]), f"member {member} drew other random numbers"
        group.modes(training=False)
        with torch.no_grad():
            merged = group.merged(batch.clone(), False)
            for member, twin in enumerate(group.twins):
                with group.twin_streams[member]:
                    torch.testing.assert_close(merged[member], twin(batch.clone()), **close)
    assert not group.failures
    return group


def _same_gradient(name: str, mine: torch.Tensor | None, own: torch.Tensor | None, close: dict[str, Any]) -> None:
    """None stays None: torch does not step a parameter without a gradient, not even by its weight decay."""
    assert (mine is None) == (own is None), f"{name} got {'no' if mine is None else 'a'} gradient"
    if mine is not None:
        torch.testing.assert_close(mine, own, **close, msg=lambda message: f"gradient of {name}: {message}")
