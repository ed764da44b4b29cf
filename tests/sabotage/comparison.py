"""Units of many models: whether the comparison before the first step refuses any member."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from pydantic import TypeAdapter
from torch import nn

from nasflow.config.search import EvaluatorConfig, MergeConfig
from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.make import make_evaluator
from nasflow.merge.planning import cost_model
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.unit import grouping
from nasflow.training.unit.grouping import Former
from tests.sabotage.models import CLASSES, Kind, kinds
from tests.training.chosen_costs import ChosenCosts, RandomCosts

HERE = Path(__file__).parent
COSTS = {"always": None, "chosen": ChosenCosts, "random": RandomCosts}
PRECISIONS: tuple[Literal["32-true", "64-true"], ...] = ("32-true", "64-true")
_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def refused(only: Sequence[str] = ()) -> str:
    """Return why the first refused member of a unit is refused; empty if none is.

    Args:
        only: the kinds of models, all by default.
    """
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    for name, kind in kinds().items():
        for precision in PRECISIONS:
            for costs in COSTS if not only or name in only else ():
                for why in _reasons(kind, precision, costs):
                    return f"{name}, {precision}, {costs}: {why.partition(chr(10))[0]}"
    return ""


def _reasons(kind: Kind, precision: Literal["32-true", "64-true"], costs: str) -> list[str]:
    """Return why members are alone that should not be."""
    trainer = make_trainer(precision)
    members = [_member(number, make, precision, trainer) for number, make in enumerate(kind.makes)]
    dtype = torch.float32 if precision == "32-true" else torch.float64
    target = torch.arange(len(kind.x)) % CLASSES
    x = kind.x.to(dtype) if kind.x.is_floating_point() else kind.x
    raised: list[str] = []
    former = Former(MergeConfig(fuse="measured" if COSTS[costs] else "always"), HERE, {})
    with ExitStack() as patches:
        patches.enter_context(patch.object(cost_model, "_fastest", _once))
        if COSTS[costs]:
            patches.enter_context(patch.object(grouping, "CostModel", COSTS[costs]))
        former.form(members, (x, target), lambda member, error: raised.append(f"{type(error).__name__}: {error}"))
    return raised + [why for why in former.reasons.values() if not why.startswith(("there is no other", "measured:"))]


def _once(run: Any, device: torch.device) -> float:
    """Replace the measurement: one try is enough."""
    run()
    return 0.0


def _member(number: int, make: Callable[[], nn.Module], precision: str, trainer: Any) -> Member:
    config = _EVALUATOR.validate_python(
        {
            "kind": "classification",
            "data": {"target": "none.py:none"},  # is not read here
            "epochs": 1,
            "precision": precision,
            "label_smoothing": (0.0, 0.1, 0.3)[number % 3],
        }
    )
    stream = RngStream(number)
    with stream:
        candidate = Candidate(make(), config)
        module = make_evaluator(config, HERE).module(candidate.model)
    member = Member(number, module, candidate, stream)
    trainer.precision_plugin.convert_module(member.module)
    member.attach(trainer, "fit", 1)
    member.start()
    return member
