"""Score a trained model again, by the same code and on the same batches as its search did."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.utilities.data import sized_len
from pydantic import TypeAdapter
from pytorch_lightning import Trainer
from torch import nn

from nasflow.checkpoint.weights_file import read_weights
from nasflow.clean_text import error_text, one_line
from nasflow.config.search import EvaluatorConfig, Target
from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import Candidate, candidate_space, paths_from
from nasflow.evaluator.loading.class_balance import with_class_weights
from nasflow.evaluator.loading.data_source import Data
from nasflow.evaluator.make import make_evaluator
from nasflow.job import activity
from nasflow.space.lazy_layers import load_lazy_layers
from nasflow.space.space import Space
from nasflow.tensors import load_saved
from nasflow.training.lightning_loop import FedModule, make_trainer
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trained import load_trained, with_weights
from nasflow.training.member_maker import load_job_data, samples_of
from nasflow.training.unit.base import guarding

_HOW = "or in the folder DIR of 'score.py --base-dir DIR' and 'load(base_dir=DIR)': name"
_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def load_model(
    search: dict[str, Any], architecture: dict[str, Any], weights: Path, base_dir: Path, paths: Path | None = None
) -> nn.Module:
    """The trained model of an export, in eval mode on the CPU.

    Args:
        search: the export's `search.json`; its `space` and `evaluator` are as in the config.
        weights: a safetensors file of the model's state dict. If the LightningModule has trained more than the model,
            that is in `module.safetensors` beside it.
        base_dir: the folder of the user's code.
        paths: where relative paths start (default: the present folder).

    Raises:
        ConfigError: a file or `paths` is missing, or the space no longer fits the architecture.
        CheckpointError: the weights are those of another model.
    """
    tensors, base_dir = read_weights(weights), base_dir.absolute()
    with _missing_files_told(paths) as folder:
        space, seed = _space(search, base_dir, folder), int(search["trial_seed"])
        return load_trained(space, architecture, seed, tensors, base_dir=base_dir, paths=folder)


def score_model(
    search: dict[str, Any], architecture: dict[str, Any], weights: Path, base_dir: Path, paths: Path | None = None
) -> dict[str, float]:
    """The validation metrics of an export's model.

    Args:
        search: as for `load_model`, and so are the others.

    Raises:
        ConfigError: the evaluator has no validation data, a file or `paths` is missing, or the space no longer fits
            the architecture.
        CheckpointError: the weights are those of another model.
    """
    weights, base_dir = weights.absolute(), base_dir.absolute()
    with _missing_files_told(paths) as folder, paths_from(folder):
        return _score_model(search, _space(search, base_dir, folder), architecture, weights, base_dir)


def _score_model(
    search: dict[str, Any], space: Space, architecture: dict[str, Any], weights: Path, base_dir: Path
) -> dict[str, float]:
    rng = RngStream(int(search["trial_seed"]))
    with rng:  # as in training: what is no weight may be drawn, too
        candidate: Candidate = space.build(architecture)
    training = candidate.training
    data = load_job_data(training.data, base_dir, int(search["seed"]), training).of(0)
    if data.validation is None:
        raise ConfigError(
            f"evaluator.data: {candidate.training.data.target} gives no validation data to score a model on"
        )
    evaluator = make_evaluator(with_class_weights(training, lambda: samples_of(data)), base_dir)
    with rng:
        module = evaluator.module(candidate.model)  # which may change the model
        callbacks = make_callbacks(training.callbacks if _has_callbacks(search) else [], base_dir)
    tensors, others = read_weights(weights), weights.with_name("module.safetensors")
    beside = read_weights(others) if others.exists() else {}
    load_lazy_layers(candidate.model, tensors)  # they have their sizes before set-up, as in training
    load_lazy_layers(module, beside)
    member = Member(0, module, candidate, rng, callbacks)
    if member.hooks.callbacks:  # they may copy weights as they are set up, as those do that average them
        _load_fitting(candidate.model, tensors)
        _load_fitting(module, beside)
    trainer = make_trainer(candidate.training.precision)
    batches = sized_len(data.train) or math.inf
    member.attach(trainer, "fit", batches, data.module)
    epochs = int(search.get("epochs") or candidate.epochs)
    steps = 0 if batches == math.inf else epochs * math.ceil(batches / member.pace.accumulated)
    member.set_progress(epochs - 1, steps)  # as in the validation of its last epoch
    with_weights(candidate.model, tensors)
    if beside:
        load_saved(member.module, beside, strict=False)
    return {**score(member, data, trainer), "parameters": float(candidate.parameters)}


def score(
    member: Member,
    data: Data,
    trainer: Trainer,
    step: str = "validation_step",
    look_up: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return what a member logs in a step on each batch of the validation data, and in the hooks around them.

    Args:
        look_up: called before each batch; what it raises ends the scoring.

    Raises:
        TrialError: the member's code raises.
    """
    trainer.validate(_ScoredModule(member, data, step, look_up), dataloaders=data.validation, verbose=False)
    return member.metrics()


class _ScoredModule(FedModule):
    """Scores one member by a step. What the member raises is raised as a TrialError."""

    def __init__(self, member: Member, data: Data, step: str, look_up: Callable[[], None]):
        super().__init__(data)
        self.modules_of_members = nn.ModuleList([member.module])  # for Lightning to move, but give no `trainer`
        self._member = member
        self._step = step
        self._look_up = look_up
        self._stage = step.removesuffix("_step")

    def on_validation_epoch_start(self) -> None:
        """Call the member's own hooks."""
        with guarding(self._member, _raise):
            self._member.call_hook(f"on_{self._stage}_start")
            self._member.call_hook(f"on_{self._stage}_epoch_start")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score the member on a batch."""
        self._look_up()
        with guarding(self._member, _raise):
            self._member.validate_batch(batch, batch_idx, self._step)
        activity.progress()

    def on_validation_epoch_end(self) -> None:
        """Call the member's own hooks."""
        with guarding(self._member, _raise):
            self._member.book.next_part()
            self._member.call_hook(f"on_{self._stage}_epoch_end")
            self._member.call_hook(f"on_{self._stage}_end")


def _load_fitting(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load the weights that the model has before its set-up, which may change it."""
    own = {name: tensor.shape for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    fitting = {name: weights[name] for name in own if own[name] == _shape(weights, name)}
    load_saved(model, fitting, strict=False)


def _shape(weights: Mapping[str, Any], name: str) -> torch.Size | None:
    return getattr(weights.get(name), "shape", None)


def _has_callbacks(search: Mapping[str, Any]) -> bool:
    """Whether an export has the code of its evaluator's callbacks; earlier ones do not."""
    return search.get("nasflow_export") != 1


def _raise(_: Member, error: BaseException) -> None:
    raise TrialError(error_text(error)) from error


def _space(search: dict[str, Any], base_dir: Path, paths: Path) -> Space:
    evaluator = _EVALUATOR.validate_python(search["evaluator"])
    return candidate_space(Target.model_validate(search["space"]), evaluator, base_dir, paths, with_values=True)


@contextmanager
def _missing_files_told(paths: Path | None) -> Iterator[Path]:
    """Yield the folder in which relative paths start. Earlier exports give none, and have no option for it."""
    folder = paths or Path.cwd()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}, in which relative paths would start")
    try:
        yield folder
    except FileNotFoundError as error:
        if not isinstance(error.filename, str) or Path(error.filename).is_absolute():
            raise
        how = "the present folder: change to" if paths is None else _HOW
        raise ConfigError(
            f"there is no file or folder '{one_line(error.filename)}': an export has the search's code, not its data; "
            f"relative paths start in {folder}, {how} that where the data is, such as the folder of the search's config"
        ) from error
