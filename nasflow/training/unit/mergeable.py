"""Whether members can be in a unit with others, as their modules, graphs and batches show."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.evaluator.ready_made.supervised import SupervisedModule
from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.op_properties import runs_own_code
from nasflow.training.member.checks import copied_tensors
from nasflow.training.member.member import Member
from nasflow.training.member.trainer.modes import EvaluationModes, has_own_modes
from nasflow.training.unit.reasons import OWN_GRADIENTS, STAYS_TRAINING


def is_ready_made(member: Member) -> bool:
    """Whether a whole unit's losses and metrics can be computed at once, with no hooks in between."""
    is_module = isinstance(member.module, SupervisedModule) and SupervisedGroup.fits([member.module])
    return is_module and not member.hooks.names


def is_pair(batch: Any) -> bool:
    """Whether a batch is a pair of tensors."""
    return (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and all(isinstance(part, torch.Tensor) for part in batch)
        and batch[0].ndim > 0
    )


def why_not_merged(member: Member, graphs: Mapping[str, Graph]) -> str | None:
    """Return why a member can't be merged though the parts of its model could be traced, or None."""
    if any(graph.has_own_gradients for graph in graphs.values()):
        return OWN_GRADIENTS
    kept = _kept_in_training(member.module)  # those that are called as they are know it themselves
    own = [node.module for graph in graphs.values() for node in graph.nodes if node.module and runs_own_code(node)]
    kept -= {part for module in own for part in module.modules()}
    traced = (part for graph in graphs.values() for part in graph.model.modules())
    return None if kept.isdisjoint(traced) else STAYS_TRAINING


def _kept_in_training(model: nn.Module) -> set[nn.Module]:
    """Return the parts of a model that are in training mode in validation, because methods that it overrides say so.

    They are called on a copy: an `eval()` may add an adapter to weights, or swap these for averages.
    """
    if not has_own_modes(model):
        return set()
    memo: dict[int, Any] = {**copied_tensors(model)}
    twin = copy.deepcopy(model, memo)
    EvaluationModes().enter([twin])
    return {part for part, other in zip(model.modules(), twin.modules(), strict=True) if other.training}
