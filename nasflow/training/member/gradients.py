"""Gradients that a module gathers by hand, from one batch to the next."""

from typing import Any

import torch

from nasflow.training.member.trainer.trainer_view import Trained

_HOOKS = ("optimizer_zero_grad", "on_validation_model_zero_grad")


def begin_gradients(member: Trained, saved: dict[str, torch.Tensor]) -> None:
    """Let a member begin to train with saved gradients by name, which are taken out, and no others, as in Lightning."""
    if _may_keep(member):
        member.module.zero_grad()
    for name, parameter in member.module.named_parameters() if saved else ():
        if name in saved:
            parameter.grad = saved.pop(name).to(parameter)


def clear_gradients(member: Trained) -> None:
    """Clear a member's gradients before a validation, as Lightning does; by its hook, which may do otherwise.

    Nothing is done where the next step clears them first: that takes long for many members.
    """
    if _may_keep(member):
        with member.rng:
            member.module.on_validation_model_zero_grad()


def kept_gradients(member: Trained, saved: dict[str, torch.Tensor] | None) -> dict[str, Any]:
    """Return the part of a member's saved state that has its gradients by name, if a later step may add to them.

    Args:
        saved: the gradients that it will begin to train with; None if it has begun.
    """
    if saved is not None:
        return {"gradients": dict(saved)} if saved else {}
    if not _may_keep(member):
        return {}
    named = {name: parameter.grad for name, parameter in member.module.named_parameters()}
    found = {name: grad for name, grad in named.items() if grad is not None and not grad.is_sparse}
    return {"gradients": found} if found else {}


def _may_keep(member: Trained) -> bool:
    return member.is_manual or not member.hooks.names.isdisjoint(_HOOKS)
