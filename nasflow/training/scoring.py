"""Score a trained model again, by the same code and on the same batches as its search did."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import load_file
from torch import nn

from nasflow.config.search import EvaluatorConfig, Target
from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.evaluator.data_source import Data
from nasflow.evaluator.make import make_evaluator
from nasflow.training.driver import error_text
from nasflow.training.lightning_loop import FedModule, make_trainer
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trained import with_weights
from nasflow.training.training_job import load_job_data
from nasflow.training.unit.base import guarding

_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def load_model(search: dict[str, Any], architecture: dict[str, Any], weights: Path, base_dir: Path) -> nn.Module:
    """The trained model of an export, in eval mode on the CPU.

    Args:
        search: the export's `search.json`; its `space` and `evaluator` are as in the config.
        weights: a safetensors file of the model's state dict.
    """
    return _load(search, architecture, weights, base_dir).model.eval()


def score_model(
    search: dict[str, Any], architecture: dict[str, Any], weights: Path, base_dir: Path
) -> dict[str, float]:
    """The validation metrics of an export's model.

    Raises:
        ConfigError: the evaluator has no validation data, or the space no longer fits the architecture.
    """
    candidate = _load(search, architecture, weights, base_dir)
    data = load_job_data(candidate.config.data, base_dir, int(search["seed"]), candidate.config.batch_limits)
    rng = RngStream(int(search["trial_seed"]))
    if data.validation is None:
        raise ConfigError(
            f"evaluator.data: {candidate.config.data.target} gives no validation data to score a model on"
        )
    member = Member(0, make_evaluator(candidate.config, base_dir).module(candidate.model), candidate, rng)
    trainer = make_trainer(candidate.config.precision)
    member.attach(trainer, "validate")
    trainer.validate(_ScoredModule(member, data), dataloaders=data.validation, verbose=False)
    return {**member.metrics(), "parameters": float(candidate.parameters)}


class _ScoredModule(FedModule):
    """Validates one member. What the member raises is raised as a TrialError."""

    def __init__(self, member: Member, data: Data):
        super().__init__(data)
        self.module_of_member = member.module  # for Lightning to move
        self._member = member

    def on_validation_epoch_start(self) -> None:
        """Call the member's own hook."""
        with guarding(self._member, _raise):
            self._member.start_validation()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score the member on a batch."""
        with guarding(self._member, _raise):
            self._member.validate_batch(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Call the member's own hook."""
        with guarding(self._member, _raise):
            self._member.end_validation()


def _raise(_: Member, error: BaseException) -> None:
    raise TrialError(error_text(error)) from error


def _load(search: dict[str, Any], architecture: dict[str, Any], weights: Path, base_dir: Path) -> Candidate:
    evaluator = _EVALUATOR.validate_python(search["evaluator"])
    space = candidate_space(Target.model_validate(search["space"]), evaluator, base_dir)
    candidate: Candidate = space.build(architecture)
    with_weights(candidate.model, load_file(weights))
    return candidate
