"""A member's optimizer and schedules, as its module configures them."""

from nasflow.training.member import checks
from nasflow.training.member.loss_scale import LossScale
from nasflow.training.member.optimization import Fitting
from nasflow.training.member.trainer.trainer_view import Trained


def configured(member: Trained) -> Fitting:
    """Return a new optimizer with its schedules, within the member's random stream.

    Raises:
        TrialError: what the module gives is no optimizer, or no schedule.
        ConfigError: the config does not fit the optimizer.
    """
    clip = member.config.gradient_clip_val
    fitting = Fitting(
        member.module.configure_optimizers(),
        None if clip is None else float(clip),  # type: ignore[arg-type]
        member.config.gradient_clip_algorithm,
        manual=member.is_manual,
        step_schedule=member.module.lr_scheduler_step if "lr_scheduler_step" in member.hooks.names else None,
        scale=LossScale() if member.config.precision == "16-mixed" else None,
        named=member.module.named_parameters,
    )
    checks.refuse_closure(fitting)
    if member.is_manual:
        member.average.watch(fitting.optimizers)
    return fitting
