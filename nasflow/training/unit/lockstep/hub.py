"""Runs steps in lockstep: each goes on until it calls its model; then all calls are answered together."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from nasflow.training.unit.lockstep.pausing import Call, PausingStep

Key = TypeVar("Key")


def run_in_lockstep(
    steps: Mapping[Key, PausingStep],
    within: Callable[[Key], AbstractContextManager[Any]],
    answer: Callable[[dict[Key, Call]], dict[Key, torch.Tensor]],
) -> dict[Key, Any]:
    """Run steps to their ends. Return what each returned; steps that raised are left out.

    Args:
        steps: in the order in which they take turns.
        within: the context in which a step's own code runs. It takes care of what the code raises.
        answer: returns the outputs for the calls that all steps which have not ended wait for.
    """
    outcomes: dict[Key, Any] = {}
    sent: dict[Key, tuple[Any, ...]] = dict.fromkeys(steps, ())
    while sent:
        calls: dict[Key, Call] = {}
        for key, outputs in sent.items():
            step = steps[key]
            with within(key), torch.set_grad_enabled(torch.is_grad_enabled()):  # a step may pause where it differs
                result = step.switch(*outputs)
                if step.dead:
                    outcomes[key] = result
                else:
                    calls[key] = result
        sent = {key: (output,) for key, output in answer(calls).items()} if calls else {}
    return outcomes
