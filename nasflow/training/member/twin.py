"""Copies of members, to try steps on."""

import copy
from typing import Any

from nasflow.training.member import checks
from nasflow.training.member.average import Average
from nasflow.training.member.configured import configured
from nasflow.training.member.metrics.metric_log import Logbook
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trainer.hooks import Hooks
from nasflow.training.member.trainer.trainer_view import give_trainer


def twin_of(member: Any) -> Any:
    """Return a member (of member.py) that trains as this one would, and shares nothing with it that training changes.

    Raises:
        Exception: whatever prevents the copy of something that its module holds.
    """
    member.book.settle()
    twin = copy.copy(member)
    twin.average = Average(None)  # no step of a twin is made
    view: Any = member.module._trainer
    memo: dict[int, Any] = {id(view): view and view.of(twin), **checks.copied_tensors(member.module)}
    memo[id(member.book)] = twin.book = Logbook()
    twin.module = copy.deepcopy(member.module, memo)
    give_trainer(twin.module, memo[id(view)])  # which Lightning leaves out of copies
    twin.hooks = Hooks(twin.module, [])  # a callback may keep anything, which a try must not change
    twin.hooks.default_dtype = member.hooks.default_dtype
    twin.rng = RngStream(0, member.rng.device)
    twin.rng.load_state_dict(member.rng.state_dict())
    with twin.rng:
        twin.fitting = configured(twin)
    twin.fitting.load_state_dict(member.fitting.state_dict())
    twin.rng.load_state_dict(member.rng.state_dict())
    return twin
