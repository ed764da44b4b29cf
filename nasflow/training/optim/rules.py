"""The update rules of torch's SGD, RMSprop, Adagrad, Adam and AdamW, with hyper-parameters that differ from row to row.

A row's new bits depend on that row alone, so members keep theirs when others leave. Pointwise operations guarantee
this. Torch's fused kernels do not: on a CPU they compute the last elements of a tensor, which do not fill a vector
register, in double precision. So their tensors are padded here to whole registers.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from nasflow.native import is_available
from nasflow.training.optim.native_adam import NativeAdam
from nasflow.training.optim.parameter_rows import Rule, Slab, Sweep

AdamConstants = tuple[float, float, float]  # both betas, and eps

_LANES = 16
"""Powers are padded to so many: torch rounds those that do not fill its vector registers differently."""

_STACKED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
_NOT_STACKED = ("amsgrad", "maximize", "capturable", "differentiable")


class Kind(NamedTuple):
    """What a rule depends on besides the param group: device, dtype, and whether a parameter is alone in its stack."""

    device_type: str
    dtype: torch.dtype
    lone: bool


def rule_of(optimizer: torch.optim.Optimizer, group: dict[str, Any], kind: Kind, common: AdamConstants) -> Rule:
    """Return the rule for parameters in a param group of a `stackable` optimizer.

    Args:
        common: the constants with which stacked rows use the fused kernel of Adam.
    """
    if isinstance(optimizer, torch.optim.SGD):
        momentum = group["momentum"] != 0
        kept = ["momentum_buffer"] if momentum else []
        return Rule(Sgd, (momentum, group["nesterov"]), tuple(kept), counted=False, in_step=momentum)
    if isinstance(optimizer, torch.optim.RMSprop):
        options = (group["momentum"] > 0, group["centered"])
        extra = [name for name, used in zip(("momentum_buffer", "grad_avg"), options, strict=True) if used]
        return Rule(RmsProp, options, ("square_avg", *extra))
    if isinstance(optimizer, torch.optim.Adagrad):
        decays = group["lr_decay"] != 0
        return Rule(Adagrad, (decays,), ("sum",), in_step=decays)
    decoupled = isinstance(optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))
    moments = ("exp_avg", "exp_avg_sq")
    if not kind.lone and (kind.device_type, kind.dtype) == ("cpu", torch.float32) and is_available():
        return Rule(NativeAdam, (decoupled,), moments)
    if has_fused_adam(kind.device_type, kind.dtype):
        if kind.lone:
            return Rule(LoneAdam, (decoupled,), moments, in_step=True)
        if _constants(group) == common:
            return Rule(FusedAdam, (decoupled, *common), moments, in_step=True)
    return Rule(PlainAdam, (decoupled,), moments)


def stackable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a rule covers everything the optimizer does; otherwise it has to step by itself."""
    step = vars(optimizer).get("step")
    return (
        type(optimizer) in _STACKED
        and not any(group.get(option) for group in optimizer.param_groups for option in _NOT_STACKED)
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and (step is None or hasattr(step, "_wrapped_by_lr_sched"))  # schedules wrap it to see whether it is called
        and all(
            parameter.dtype in (torch.float32, torch.float64) and _is_dense(parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
    )


@lru_cache
def has_fused_adam(device_type: str, dtype: torch.dtype) -> bool:
    """Whether torch's fused kernel of Adam works for this device and dtype; tried once."""
    tensors = [[torch.zeros(1, dtype=dtype, device=device_type)] for _ in range(4)]
    try:
        _fused(torch._fused_adamw_, tensors, torch.ones((), device=device_type), (0.9, 0.999, 1e-8), (1.0, 1.0))
    except torch.OutOfMemoryError:  # says nothing about the kernel
        raise
    except (RuntimeError, AttributeError):  # NotImplementedError is a RuntimeError
        return False
    return True


class _L2:
    """Weight decay that is added to the gradients."""

    def __init__(self, sweep: Sweep):
        rates = sweep.values(lambda group: group["weight_decay"])
        self._sweep = sweep
        self._slabs = sweep.slabs if rates.any() else []
        self._rates, self._none = sweep.columns("decay", rates), sweep.columns("no decay", rates == 0)
        self._is_mixed = bool(self._slabs) and not rates.all()
        self.form = (bool(self._slabs), self._is_mixed)

    def add(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Add it in place. Overwrites the slabs' scratch, which stays finite where the parameters are finite."""
        if not self._slabs:
            return
        decays = [slab.scratch for slab in self._slabs]
        self._sweep.multiply(parameters, self._rates, decays)
        if self._is_mixed:  # rows without decay get nothing added, even where they are infinite
            for decay, none in zip(decays, self._none, strict=True):
                decay.masked_fill_(none, -0.0)
        torch._foreach_add_(grads, decays)


class Sgd(Sweep):
    """SGD; options are (momentum, nesterov)."""

    @property
    def form(self) -> Hashable:  # type: ignore[override]
        """Whether rows decay, gradients are dampened, and there is no momentum yet."""
        dampens = self.options[0] and self._shares is not None
        return self._l2.form, dampens, self.options[0] and self.next_step == 1

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        self._l2 = _L2(self)
        self._rates = self.columns("rate", -self.values(lambda group: group["lr"]))
        if self.options[0]:
            self._momenta = self.columns("momentum", self.values(lambda group: group["momentum"]))
            shares = 1 - self.values(lambda group: group["dampening"])
            self._shares = self.columns("share", shares) if (shares != 1).any() else None

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        momentum, nesterov = self.options
        self._l2.add(parameters, grads)
        if momentum:
            buffers = self.states("momentum_buffer")
            self._accumulate(buffers, grads)
            if nesterov:
                torch._foreach_addcmul_(grads, buffers, self._momenta)
            else:
                grads = buffers
        torch._foreach_addcmul_(parameters, grads, self._rates)

    def _accumulate(self, buffers: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        if self.next_step == 1:  # the first gradient is not dampened
            torch._foreach_copy_(buffers, grads)
            return
        torch._foreach_mul_(buffers, self._momenta)
        if self._shares is None:
            torch._foreach_add_(buffers, grads)
        else:
            torch._foreach_addcmul_(buffers, grads, self._shares)


class RmsProp(Sweep):
    """RMSprop; options are (momentum, centered)."""

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        self._l2 = _L2(self)
        self.form = self._l2.form
        self._rates = self.columns("rate", -self.values(lambda group: group["lr"]))
        alphas = self.values(lambda group: group["alpha"])
        self._alphas, self._shares = self.columns("alpha", alphas), self.columns("share", 1 - alphas)
        self._eps = self.columns("eps", self.values(lambda group: group["eps"]))
        self._momenta = self.columns("momentum", self.values(lambda group: group["momentum"]))

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        momentum, centered = self.options
        self._l2.add(parameters, grads)
        roots = _average_squares(self, "square_avg", grads, self._alphas, self._shares)
        if centered:
            means = self.states("grad_avg")
            torch._foreach_lerp_(means, grads, self._shares)
            torch._foreach_addcmul_(roots, means, means, value=-1)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, self._eps)
        if momentum:
            buffers = self.states("momentum_buffer")
            torch._foreach_mul_(buffers, self._momenta)
            torch._foreach_addcdiv_(buffers, grads, roots)
            torch._foreach_addcmul_(parameters, buffers, self._rates)
        else:
            torch._foreach_div_(grads, roots)
            torch._foreach_addcmul_(parameters, grads, self._rates)


class Adagrad(Sweep):
    """Adagrad; options are (whether rates decay,)."""

    @property
    def form(self) -> Hashable:  # type: ignore[override]
        """Whether rows decay, and the step, where rates depend on it: the host computes them."""
        return self._l2.form, self.options[0] and self.next_step

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        self._l2 = _L2(self)
        self._lrs = self.values(lambda group: group["lr"])
        self._decays = self.values(lambda group: group["lr_decay"])
        self._rates = self.columns("rate", -self._lrs)
        self._eps = self.columns("eps", self.values(lambda group: group["eps"]))

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        if self.options[0]:
            self._rates = self.columns("rate", -self._lrs / (1 + (self.next_step - 1) * self._decays))
        self._l2.add(parameters, grads)
        sums, roots = self.states("sum"), self.scratch()
        torch._foreach_addcmul_(sums, grads, grads)
        torch._foreach_copy_(roots, sums)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, self._eps)
        torch._foreach_div_(grads, roots)
        torch._foreach_addcmul_(parameters, grads, self._rates)


class PlainAdam(Sweep):
    """Adam and AdamW in pointwise operations, with any constants; options are (decoupled weight decay,)."""

    def __init__(self, slabs: Sequence[Slab]):
        super().__init__(slabs)
        # powers are slow to compute, and rows of a param group with equal ages share theirs
        _, first, row = np.unique(np.stack([self.slots, self.ages]), axis=1, return_index=True, return_inverse=True)
        self._first = np.resize(first, len(first) + -len(first) % _LANES)
        self._row = torch.from_numpy(row.reshape(-1)).to(slabs[0].whole.device)

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        lr, beta1 = self.values(lambda group: group["lr"]), self.values(lambda group: group["betas"][0])
        beta2 = self.values(lambda group: group["betas"][1])
        distinct = np.stack([self.ages, lr, beta1, beta2])[:, self._first]
        self._distinct = self.placed("distinct", distinct, torch.float64)
        self._decay, self.form = _decay(self)
        self._shares1 = self.columns("share 1", 1 - beta1)
        self._betas2, self._shares2 = self.columns("beta 2", beta2), self.columns("share 2", 1 - beta2)
        self._eps = self.columns("eps", self.values(lambda group: group["eps"]))

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        ages, lr, beta1, beta2 = self._distinct
        steps, dtype = ages + self.count(torch.float64), parameters[0].dtype
        rates = self.split((-lr / (1 - beta1**steps))[self._row].to(dtype))
        corrections = self.split((1 - beta2**steps).sqrt()[self._row].to(dtype))
        self._decay(parameters, grads)
        means = self.states("exp_avg")
        torch._foreach_lerp_(means, grads, self._shares1)
        roots = _average_squares(self, "exp_avg_sq", grads, self._betas2, self._shares2)
        torch._foreach_sqrt_(roots)
        torch._foreach_div_(roots, corrections)
        torch._foreach_add_(roots, self._eps)
        torch._foreach_div_(roots, rates)  # a rate of 0 makes this infinite, and so the update 0
        torch._foreach_addcdiv_(parameters, means, roots)


class FusedAdam(Sweep):
    """Adam and AdamW through torch's fused kernel; options are (decoupled weight decay, beta1, beta2, eps).

    The kernel takes one learning rate, so it computes the updates for a rate of 1 in the slabs' scratch. They are then
    added to the parameters at each row's own rate. A "weight decay" of 1 clears the previous updates in the scratch.
    Non-finite values would remain, but parameters that ever got such an update are not usable anyway.
    """

    def __init__(self, slabs: Sequence[Slab]):
        super().__init__(slabs)
        self._updates = self.scratch()
        self._kernel = [
            [Slab.padded(matrix) for matrix in matrices]
            for matrices in (self._updates, self.states("exp_avg"), self.states("exp_avg_sq"))
        ]
        odd = [i for i, matrix in enumerate(self._updates) if Slab.padded(matrix) is not matrix]
        self._stages = [(i, stage, Slab.padded(stage)) for i in odd for stage in [self.slabs[i].zeros()]]

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        self._decay, self.form = _decay(self)
        self._rates = self.columns("rate", self.values(lambda group: group["lr"]))

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        for i, stage, _ in self._stages:
            grads[i] = stage.copy_(grads[i])
        self._decay(parameters, grads)
        for i, _, flat in self._stages:
            grads[i] = flat
        updates, means, squares = self._kernel
        count = self.count(torch.float32)
        _fused(torch._fused_adamw_, (updates, grads, means, squares), count, self.options[1:], (1.0, 1.0))
        torch._foreach_addcmul_(parameters, self._updates, self._rates)


class LoneAdam(Sweep):
    """Adam and AdamW for parameters that are alone in their stacks, straight through torch's fused kernel."""

    @staticmethod
    def shared(group: dict[str, Any]) -> Hashable:
        """All hyper-parameters."""
        return (*_constants(group), float(group["lr"]), float(group["weight_decay"]))

    def prepare(self) -> None:
        """Work out what follows from the hyper-parameters."""
        group = self.groups[self.slots[0]]
        self._constants, self._decay = _constants(group), float(group["weight_decay"])
        self._rate: float | torch.Tensor = float(group["lr"])
        whole = self.slabs[0].whole
        if whole.is_cpu or whole.dtype == torch.float32:  # a GPU takes no rates of more digits as tensors
            # it is read when the kernel runs, so a replayed step takes the newest
            dtype = torch.float64 if whole.is_cpu else torch.float32
            self._rate = self.placed("rate", np.array([self._rate]), dtype)[0]
        self.form = self._constants, self._decay, isinstance(self._rate, float) and self._rate

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        kernel = torch._fused_adamw_ if self.options[0] else torch._fused_adam_
        tensors = (parameters, grads, self.states("exp_avg"), self.states("exp_avg_sq"))
        _fused(kernel, tensors, self.count(torch.float32), self._constants, (self._rate, self._decay))


def _decay(sweep: Sweep) -> tuple[Callable[[list[torch.Tensor], list[torch.Tensor]], None], Hashable]:
    """Return a function that applies the weight decay of Adam (`options[0]` false) or AdamW, and its form."""
    if not sweep.options[0]:
        l2 = _L2(sweep)
        return l2.add, l2.form
    rates = sweep.values(lambda group: group["lr"]) * sweep.values(lambda group: group["weight_decay"])
    kept = sweep.columns("kept", 1 - rates)

    def shrink(parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        torch._foreach_mul_(parameters, kept)

    decays = bool(rates.any())
    return (shrink if decays else lambda parameters, grads: None), decays


def _average_squares(
    sweep: Sweep, name: str, grads: list[torch.Tensor], betas: list[torch.Tensor], shares: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Move the averages of squared gradients, and return copies of them in the slabs' scratch."""
    squares, scratch = sweep.states(name), sweep.scratch()
    torch._foreach_mul_(squares, betas)
    sweep.multiply(grads, shares, scratch)
    torch._foreach_addcmul_(squares, scratch, grads)
    torch._foreach_copy_(scratch, squares)
    return scratch


def _fused(
    kernel: Callable[..., None],
    tensors: Sequence[list[torch.Tensor]],
    count: torch.Tensor,
    constants: AdamConstants,
    rates: tuple[float | torch.Tensor, float],
) -> None:
    """Call a fused kernel on (parameters, gradients, means, squares) with rates (learning rate, weight decay).

    Args:
        count: the number of the step, a scalar.
    """
    beta1, beta2, eps = constants
    lr, weight_decay = rates
    kernel(
        *tensors,
        [],
        [count] * len(tensors[0]),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _constants(group: dict[str, Any]) -> AdamConstants:
    beta1, beta2 = group["betas"]
    return float(beta1), float(beta2), float(group["eps"])


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
