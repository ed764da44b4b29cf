"""The step of a member by itself, in the order and with the hooks of Lightning's loop."""

import dis
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from nasflow.autocast import with_casts_of_now, without_casts
from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.own_parts import is_known
from nasflow.training.member.batches import copied
from nasflow.training.member.metrics.metric_log import Logbook, batch_size_of
from nasflow.training.member.trainer.hooks import GRADIENT_HOOKS, OWN_STEP_HOOKS, STEPS, EndsEpochError
from nasflow.training.member.trainer.trainer_view import Trained


class Steps(Trained, Protocol):
    """What a step needs of a member."""

    book: Logbook
    last_batch: Any
    takes_index: dict[str, bool]

    def run_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what `training_step` returns."""

    def check_loss(self, loss: torch.Tensor, index: int) -> None:
        """Raise a TrialError if a loss is not finite."""


def why_alone(member: Trained) -> str | None:
    """Return why a member's steps can't be made together with those of others; None if they can."""
    if member.is_manual:
        return "it optimizes manually"
    if own := sorted(member.hooks.names.intersection(OWN_STEP_HOOKS)):
        return f"it makes its step in a way of its own: {', '.join(own)}"
    optimizer = member.fitting.optimizer
    name = type(optimizer).__name__
    if member.fitting.needs_closure:
        return f"{name} calls its step several times"
    if not is_known(type(optimizer)):
        return f"its optimizer {name} is none of torch's"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"its optimizer {name} has hooks"
    return None


def call_step(member: Steps, name: str, batch: Any, index: int) -> Any:
    """Return what a step returns, with the hooks before it, and those after a step of validation.

    Raises:
        EndsEpochError: a hook skips the rest of the epoch.
    """
    gradients = torch.is_grad_enabled()
    batch = begin_step(member, name, batch, index)
    if name == "training_step" and not member.is_manual:
        torch.set_grad_enabled(gradients)  # as in Lightning, whatever a hook has left
    return member.run_step(name, batch, index)


def begin_step(member: Steps, name: str, batch: Any, index: int) -> Any:
    """Call the hooks before a step, and return the batch for it. Raises as `call_step`."""
    if name == "training_step":
        member.batch_index = index
    batch = member.hooks.transferred(batch)
    member.book.batch_size = batch_size_of(batch)
    if member.hooks.call(STEPS[name].start, batch, index) == -1 and name == "training_step":
        raise EndsEpochError
    return batch


def run_step(member: Steps, name: str, batch: Any, index: int) -> Any:
    """Return what a step returns on the batch of `begin_step`; call the hooks after a step of validation."""
    step = getattr(member.module, name)
    output = step(batch, index) if member.takes_index[name] else step(batch)
    if name == "training_step":
        member.last_batch = batch if "on_train_batch_end" in member.hooks.names else None
    else:
        member.hooks.call(STEPS[name].end, output, batch, index)
    return output


def make_step(member: Steps, batch: Any, index: int) -> Any:
    """Make a step of a member on a shared batch, with all of its hooks but those after it.

    Returns:
        What its `training_step` returned, for these hooks.

    Raises:
        EndsEpochError: a hook skips the rest of the epoch.
    """

    given = begin_step(member, "training_step", copied(batch), index)

    def run() -> Any:
        return member.run_step("training_step", given, index)

    if member.is_manual:
        return manual_step(run)
    with torch.enable_grad():  # as in Lightning, whatever a hook has left
        return _make_automatic(member, run, index)


def _make_automatic(member: Steps, run: Callable[[], Any], index: int) -> Any:
    in_hooks = not member.hooks.names.isdisjoint((*OWN_STEP_HOOKS, *GRADIENT_HOOKS))
    if in_hooks or (why_alone(member) and _takes_closure(type(member.fitting.optimizer).step)):
        return automatic_step(member, run, index)
    output = run()
    loss = loss_in(output)
    if loss is None and member.pace.accumulated == 1:
        member.fitting.count_step()
    else:
        if loss is not None:
            member.check_loss(loss, index)
            loss = share_of(loss, member.pace.accumulated)
        with without_casts(member.module.device.type):
            member.fitting.step(loss, first=member.pace.is_first(index), last=member.pace.is_last(index))
    return output


@functools.cache
def _takes_closure(step: Callable[..., Any]) -> bool:
    """Whether an optimizer's step may call its closure, as its code shows; else gradients have to be there before."""
    code = getattr(inspect.unwrap(step), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return True
    return any(line.argval == "closure" and line.opname.startswith("LOAD") for line in dis.get_instructions(code))


def automatic_step(member: Steps, run: Callable[[], Any], index: int) -> Any:
    """Make an optimizer step through the module's `optimizer_step`, at the last of its batches.

    Returns:
        What the last `training_step` returned; an empty dict if the optimizer called none.

    Args:
        run: the `training_step`; some optimizers call it several times.
    """
    module, hooks = member.module, member.hooks
    [optimizer] = module.trainer.strategy._lightning_optimizers
    epoch = member.finished_epochs
    casts = with_casts_of_now(module.device.type)
    output: Any = {}

    @torch.enable_grad()
    def closure() -> torch.Tensor | None:
        nonlocal output
        with casts:
            output = run()
        loss = loss_in(output)
        if member.pace.is_first(index):
            hooks.call("on_before_zero_grad", optimizer.optimizer)
            module.optimizer_zero_grad(epoch, index, optimizer.optimizer)
        if loss is None:
            return None
        member.check_loss(loss, index)
        loss = share_of(loss, member.pace.accumulated)
        scaled = member.fitting.scaled(loss)
        hooks.call("on_before_backward", scaled)
        module.backward(scaled)
        hooks.call("on_after_backward")
        return loss.detach().clone()

    with without_casts(module.device.type):
        if member.pace.is_last(index):
            module.optimizer_step(epoch, index, optimizer, closure)
            member.fitting.count_step()
        else:
            closure()
    return output


def manual_step(run: Callable[[], Any]) -> Any:
    """Run the `training_step` of a module that steps its optimizers in it. Return what it returned, {} for nothing."""
    output = run()
    if output is not None and not isinstance(output, torch.Tensor | Mapping):
        raise TrialError(
            f"training_step returned a {type(output).__name__}; with manual optimization it should return a tensor, a "
            "dict or nothing"
        )
    return output if output is not None else {}


def loss_in(output: Any) -> torch.Tensor | None:
    """Return the loss that `training_step` returned; None skips the batch, as in Lightning.

    Raises:
        TrialError: it returned something else.
    """
    if isinstance(output, dict) and "loss" not in output:
        raise TrialError(
            f"training_step returned a dict with {', '.join(map(repr, output)) or 'nothing'}; put the loss under 'loss'"
        )
    loss = output["loss"] if isinstance(output, dict) else output
    if loss is not None and not isinstance(loss, torch.Tensor):
        raise TrialError(
            f"training_step returned a {type(loss).__name__} as its loss; it should return a tensor with one number "
            "(not its .item()), a dict with that under 'loss', or None to skip the batch"
        )
    if loss is not None and loss.numel() != 1:
        raise TrialError(
            f"training_step returned a loss of the shape {tuple(loss.shape)}; it should be one number, such as its mean"
        )
    return loss


def share_of(loss: torch.Tensor, batches: int) -> torch.Tensor:
    """Return what a batch's loss contributes to an optimizer step of so many batches."""
    return loss if batches == 1 else loss / batches


def outputs_of(output: Any, batches: int = 1) -> dict[str, Any]:
    """Return the `outputs` that `on_train_batch_end` gets for what `training_step` returned.

    Args:
        batches: of an optimizer step, by which Lightning divides the loss.
    """
    if output is None:
        return {}
    outputs = dict(output) if isinstance(output, Mapping) else {"loss": output}
    if isinstance(outputs.get("loss"), torch.Tensor):
        outputs["loss"] = share_of(outputs["loss"].detach(), batches).clone()
    return outputs
