"""Members of jobs beside Lightning's own Trainer."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from nasflow.config.search import EvaluatorConfig
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.make import make_evaluator
from nasflow.job.events import Final
from nasflow.job.spec import JobSpec
from nasflow.training.member.rng import RngStream
from nasflow.training.member_maker import load_job_data
from tests.training.jobs import evictions, make_job, train, weights


def as_trainer(
    config: EvaluatorConfig,
    root: Path,
    space: str = "spaces.py:deep",
    architecture: Mapping[str, Any] = MappingProxyType({}),
) -> LightningModule:
    """A member ends with the weights and metrics of a Trainer that trains a module of the same class.

    Returns:
        The Trainer's module.
    """
    job = make_job(space, config, [architecture])
    stream = RngStream(job.members[0].seed)
    with stream:
        model = candidate_space(job.space, config, job.base_dir).build(architecture).model
        module = make_evaluator(config, job.base_dir).module(model)
        callbacks = make_callbacks(config.callbacks, job.base_dir)
        trainer = fitted(job, module, callbacks)
    events = train(job, root)
    assert not evictions(events), evictions(events)[0].error
    trained, expected = weights(root, 0), module.state_dict()
    assert trained.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, trained[name]), (name, tensor, trained[name])
    [final] = [event for event in events if isinstance(event, Final)]
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    found = {name: value for name, value in final.metrics.items() if name != "parameters"}
    assert found == pytest.approx(metrics, rel=1e-6)  # Lightning sums in single precision
    return module


def fitted(job: JobSpec, module: LightningModule, callbacks: list[Callback]) -> Trainer:
    """A Trainer as the job's evaluator has it, that has trained a module on the job's data."""
    config: Any = job.evaluator
    data = load_job_data(job.data, job.base_dir, job.data_seed)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=int(config.epochs),
        precision=config.precision,
        gradient_clip_val=config.gradient_clip_val,
        accumulate_grad_batches=config.accumulate_grad_batches,
        gradient_clip_algorithm=config.gradient_clip_algorithm if config.gradient_clip_val else None,
        check_val_every_n_epoch=config.validate_every,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data.train, data.validation)
    return trainer
