"""Work in epochs that can be interrupted anywhere: what to do, when to end, and where to resume. After Caffe2's Job.

A job has three groups of steps. Each step is a function of the job's *state*, a dict that they share; `state["epoch"]`
counts finished epochs. For example, with these functions in a module `count`::

    def begin(state, start):
        state["total"] = start

    def add(state, amount):
        state["total"] += amount

    def enough(state, most):
        return state["total"] >= most

the following job counts. If it is killed and started again, it continues from the last saved epoch (the previous
epoch's checkpoint may still be in writing while an epoch runs)::

    job = Job(init=[Call(begin, start=0)], epoch=[Call(add, amount=3)], stop=[Call(enough, most=12), EpochLimit(9)])
    JobRunner(job, CheckpointManager("counted", ["total"])).run()

and `job.compile()` returns it in a form for JSON, from which another process restores it: `CompiledJob.load(base_dir)`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from nasflow.errors import ConfigError
from nasflow.load_target import load_target

State = dict[str, Any]
"""What a job works with, by name; its checkpoints hold it."""


class Checkpoints(Protocol):
    """What a runner needs from a checkpoint manager."""

    def is_due(self, epoch: int) -> bool:
        """Whether to save a checkpoint after so many epochs."""

    def save(self, state: State, epoch: int) -> None:
        """Save the state after so many epochs."""

    def load(self, state: State, epoch: int | None = None) -> int | None:
        """Load the checkpoint of `epoch`, by default the newest, into the state. Return its epoch, None without one."""

    def wait(self) -> None:
        """Wait until all that was saved is on disk."""


class Call:
    """A function with arguments, as a step or a stop signal; the state is its first argument."""

    def __init__(self, function: Callable[..., Any], **params: Any):
        self.function, self.params = function, params

    def __call__(self, state: State) -> Any:
        """Call the function with the state and the arguments."""
        return self.function(state, **self.params)


@dataclass(frozen=True)
class EpochLimit:
    """A stop signal after a number of epochs."""

    epochs: int

    def __call__(self, state: State) -> bool:
        """Whether that many epochs are finished."""
        return int(state["epoch"]) >= self.epochs


Step = Callable[[State], Any]
"""Does work on the state."""
Signal = Callable[[State], bool]
"""Whether to stop, from the state."""


@dataclass(frozen=True)
class Job:
    """The steps and stop signals of a job.

    Attributes:
        init: steps before the first epoch, also when the job is resumed; the checkpoint is loaded after them.
        epoch: steps of each epoch.
        exit: steps after the last epoch.
        stop: signals checked before the first epoch and after each; if any is true, the job ends.
    """

    init: Sequence[Step] = ()
    epoch: Sequence[Step] = ()
    exit: Sequence[Step] = ()
    stop: Sequence[Signal] = ()

    def compile(self) -> "CompiledJob":
        """Return the job in a form that JSON can hold.

        Raises:
            ConfigError: a step is no function that another process could import, or has an argument that is not JSON.
        """
        groups = {name: [_compiled(name, call) for call in getattr(self, name)] for name in CompiledJob.model_fields}
        return CompiledJob(**groups)


class CompiledCall(BaseModel):
    """A step by the import path of its function, `package.module:name`, and its arguments."""

    model_config = ConfigDict(frozen=True)

    target: str
    params: dict[str, JsonValue] = {}


class CompiledJob(BaseModel):
    """A job that can be sent to another process."""

    model_config = ConfigDict(frozen=True)

    init: list[CompiledCall] = []
    epoch: list[CompiledCall] = []
    exit: list[CompiledCall] = []
    stop: list[CompiledCall] = []

    def load(self, base_dir: Path) -> Job:
        """Return the job; modules are also searched in `base_dir`. Raises ConfigError if one is missing."""

        def calls(group: Sequence[CompiledCall]) -> list[Step]:
            return [Call(load_target(call.target, base_dir), **call.params) for call in group]

        return Job(calls(self.init), calls(self.epoch), calls(self.exit), calls(self.stop))


class JobRunner:
    """Runs a job from its newest checkpoint.

    Args:
        checkpoints: called after init and after every epoch; None to save nothing.
        resume_from_epoch: which checkpoint to resume from, the newest if None.
    """

    def __init__(self, job: Job, checkpoints: Checkpoints | None = None, resume_from_epoch: int | None = None):
        self._job, self._checkpoints, self._resume_from = job, checkpoints, resume_from_epoch

    def run(self, state: State | None = None) -> State:
        """Run to the end, and return the state.

        Raises:
            CheckpointError: the checkpoint to resume from can't be read.
        """
        state = {} if state is None else state
        self.begin(state)
        while not self.is_over(state):
            self.run_epoch(state)
        self.finish(state)
        return state

    def begin(self, state: State) -> None:
        """Run up to the first epoch. A loop that drives the epochs itself calls this and the next three methods."""
        state["epoch"] = 0
        for step in self._job.init:
            step(state)
        if self._checkpoints is None:
            return
        found = self._checkpoints.load(state, self._resume_from)
        if found is None:
            self._checkpoints.save(state, 0)
        else:
            state["epoch"] = found

    def is_over(self, state: State) -> bool:
        """Whether a stop signal is true."""
        return any(signal(state) for signal in self._job.stop)

    def run_epoch(self, state: State) -> None:
        """Run one epoch, and save."""
        for step in self._job.epoch:
            step(state)
        state["epoch"] += 1
        over = self.is_over(state)
        if self._checkpoints is not None and (over or self._checkpoints.is_due(state["epoch"])):
            self._checkpoints.save(state, state["epoch"])

    def finish(self, state: State) -> None:
        """Run the exit steps, after the last epoch is saved."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
        for step in self._job.exit:
            step(state)


def _compiled(group: str, call: Any) -> CompiledCall:
    function, params = (call.function, call.params) if isinstance(call, Call) else (call, {})
    if isinstance(call, EpochLimit):
        function, params = _is_at_limit, {"epochs": call.epochs}
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
        raise ConfigError(
            f"job: step {function!r} of {group} can't be sent to another process; make it a function of a module"
        )
    target = f"{module}:{name}"
    try:
        return CompiledCall(target=target, params=params)
    except ValidationError as error:
        raise ConfigError(f"job: an argument of step {target} of {group} is not JSON: {params}") from error


def _is_at_limit(state: State, epochs: int) -> bool:
    return EpochLimit(epochs)(state)
