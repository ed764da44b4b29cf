"""What a member may not be, and what it may not become."""

from collections.abc import Mapping, Sequence

import torch
from pytorch_lightning import Callback, LightningModule

from nasflow.config.evaluator.training import TrainingConfig
from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.callbacks import refuse_unfit
from nasflow.training.member.metrics.reporting import refuse_losses
from nasflow.training.member.optimization import Fitting

_UNCALLED = (*("on_validation_model_eval", "on_validation_model_train", "on_test_model_eval", "on_test_model_train"),)


def callbacks_of(module: LightningModule, given: Sequence[Callback]) -> list[Callback]:
    """Return a trial's callbacks: the given ones, and the module's, which replace given ones of the same type.

    Raises:
        ConfigError: a trial can't have one of the module's.
    """
    found = module.configure_callbacks() or []
    own = list(found) if isinstance(found, Sequence) else [found]
    for callback in own:
        refuse_unfit(callback, f"{type(module).__name__}.configure_callbacks: {type(callback).__name__}")
    kept = [one for one in given if type(one) is Callback or not any(isinstance(mine, type(one)) for mine in own)]
    return kept + own


def refuse_uncalled(module: LightningModule) -> None:
    """Raise ConfigError for a hook that no member's is called, so that it does not stay without effect unnoticed."""
    for name in _UNCALLED:
        if getattr(type(module), name) is not getattr(LightningModule, name):
            raise ConfigError(
                f"{type(module).__name__}.{name} is not called: the models of all trials of a job change to evaluation "
                "and back together; do it in on_validation_start or on_test_start instead"
            )


def refuse_for_manual(module: LightningModule, config: TrainingConfig) -> None:
    """Raise ConfigError if the config says how to step, which a module that steps its optimizers must do itself."""
    name = type(module).__name__
    if config.gradient_clip_val is not None:
        raise ConfigError(
            f"evaluator.gradient_clip_val: {name} optimizes manually; call self.clip_gradients in its training_step "
            "instead"
        )
    if config.accumulate_grad_batches != 1:
        raise ConfigError(
            f"evaluator.accumulate_grad_batches: {name} optimizes manually; step every few batches in its "
            "training_step instead"
        )
    if config.precision == "16-mixed":
        raise ConfigError(
            f"evaluator.precision: {name} optimizes manually, and 16-mixed would have to scale its losses; use "
            "bf16-mixed"
        )


def refuse_closure(fitting: Fitting) -> None:
    """Raise ConfigError if losses are to be scaled for an optimizer that calls the step several times."""
    if fitting.scale is not None and fitting.needs_closure:
        raise ConfigError(
            f"evaluator.precision: {type(fitting.optimizer).__name__} calls its step several times, which can't be "
            "done with the scaled losses of 16-mixed; use bf16-mixed"
        )


def refuse_loss(loss: torch.Tensor, epoch: int, step: int) -> None:
    """Raise TrialError if the loss of a batch is not finite, or no weight has a gradient by it."""
    where = f"in epoch {epoch}, step {step}"
    if not torch.isfinite(loss):
        raise TrialError(f"training loss is {loss.item()} {where}")
    if not loss.requires_grad:
        raise TrialError(
            f"training loss has no gradient {where}; compute it from outputs of layers that train, without no_grad, "
            "detach or argmax"
        )


def refuse_not_finite(
    module: torch.nn.Module, metrics: Mapping[str, float], epoch: int, are_weights_finite: bool | None
) -> None:
    """Raise TrialError if a loss or a weight that is trained is not finite. A frozen one may be a mask of infinities.

    Args:
        are_weights_finite: None if it is not known yet.
    """
    refuse_losses(metrics, epoch)
    if are_weights_finite is None:
        weights = [p for p in module.parameters() if p.is_floating_point() and p.requires_grad]
        are_weights_finite = not weights or bool(torch.isfinite(torch.nn.utils.get_total_norm(weights)))
    if not are_weights_finite:
        raise TrialError(f"weights are not finite after epoch {epoch}")


def copied_tensors(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Return, by id, copies of a module's parameters and buffers: a `deepcopy` of a row would copy its whole stack."""
    copies: dict[int, torch.Tensor] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        copies[id(tensor)] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
    return copies
