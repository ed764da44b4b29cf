"""A trial of `kind: function`, in a process of its own (`function_program`).

Reports go to a file, and after each the process waits for a line on its standard input: whether to go on.
"""

import gc
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import torch
from pydantic import BaseModel

from nasflow.checkpoint.store import CheckpointStore
from nasflow.clean_text import error_text
from nasflow.config.search import FunctionConfig
from nasflow.errors import ConfigError, TrainingEnded
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.evaluator.function import load_function
from nasflow.job.reports import append_report, parse_report
from nasflow.job.spec import JobSpec
from nasflow.training.member.rng import RngStream

GO_ON, END = "go on", "end"
"""The answers to a report."""


class Task(BaseModel):
    """What the process trains.

    Attributes:
        job: the job of the trial.
        trial: its number.
        reported: its epochs on record; it does not wait for an answer after their reports.
        folder: for its files: `reports`, `error`, and its `checkpoint`, which has what an earlier process saved last.
    """

    job: JobSpec
    trial: int
    reported: int
    folder: Path


class Report:
    """Ends an epoch: `report(val_accuracy=0.97)`, or `report({"val_accuracy": 0.97})`.

    Attributes:
        epoch: the epochs so far, those of the loaded checkpoint included.
    """

    def __init__(self, file: Path, reported: int, answers: IO[str]):
        self.epoch = 0
        self._file, self._reported, self._answers = file, reported, answers

    def __call__(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Report the metrics of an epoch; what was saved since the last report is kept with them.

        Raises:
            TrainingEnded: the trial ends here: it had all its epochs, stopped early, or was stopped.
            TypeError: a metric is no number, or has no name.
        """
        if not isinstance(metrics, Mapping | None):
            raise TypeError(f"report({metrics!r:.80}): the metric has no name; write report(val_accuracy=...), say")
        values = {name: _number(name, value) for name, value in {**(metrics or {}), **named}.items()}
        line = {**values, "epoch": self.epoch + 1}
        try:
            parse_report(json.dumps(line))
        except ValueError as error:
            raise TypeError(f"report(...) can't be used: {error}") from None
        self.epoch += 1
        append_report(self._file, line)  # also one that is on record: it shows that the function goes on
        if self.epoch <= self._reported:
            return
        if self._answers.readline().strip() != GO_ON:
            raise TrainingEnded(f"the trial ends after epoch {self.epoch}")


class Checkpoint:
    """What a function saves, to go on from there when its process was killed.

    Random numbers of torch, NumPy and Python are saved beside, and go on where they were when the state is loaded.
    """

    def __init__(self, store: CheckpointStore, report: Report, rng: RngStream):
        self._store, self._report, self._rng = store, report, rng
        self._is_earlier = True  # what the store has was saved by an earlier process

    def save(self, state: Any) -> None:
        """Save nested dicts, lists and tuples of tensors, numbers and text. It counts from the next report on.

        Raises:
            CheckpointError: there is something else in it; the message says where.
        """
        with _paused(self._rng):
            kept = {"state": state, "epoch": self._report.epoch + 1, "rng": self._rng.state_dict()}
        self._store.save(self._report.epoch + 1, kept)
        self._is_earlier = False

    def load(self) -> Any:
        """Return what was saved last, with its tensors on the CPU; None if nothing was."""
        state = self._store.load_newest()
        if state is None:
            return None
        if self._is_earlier:
            self._report.epoch = state["epoch"]
        with _paused(self._rng):
            self._rng.load_state_dict(state["rng"])
        self._is_earlier = False
        return state["state"]


def train(task: Task, answers: IO[str]) -> None:
    """Build the trial's model from its seed, and call the function. Raises whatever that raises."""
    job, config = task.job, cast(FunctionConfig, task.job.evaluator)
    (member,) = (each for each in job.members if each.trial == task.trial)
    rng = RngStream(member.seed, torch.device("cuda", 0) if torch.cuda.is_available() else None)
    space = candidate_space(job.space, config, job.base_dir)
    report = Report(task.folder / "reports", task.reported, answers)
    checkpoint = Checkpoint(CheckpointStore(task.folder / "checkpoint", 1), report, rng)
    function = load_function(config, job.base_dir)
    gc.freeze()  # what was imported stays, so that collections need not look at it
    with rng:
        candidate: Candidate = space.build(member.architecture)
        ours = {"model": candidate.model, "report": report, "checkpoint": checkpoint, "seed": member.seed}
        named = inspect.signature(function).parameters
        params = cast(FunctionConfig, candidate.config).params
        try:
            function(**{name: value for name, value in ours.items() if name in named}, **params)
        except TrainingEnded:
            return


def run(file: Path) -> None:
    """Train the trial of the task in this file. What is raised is written into `error` in the folder of the task."""
    answers = os.fdopen(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    task = Task.model_validate_json(file.read_bytes())
    try:
        train(task, answers)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        text = str(error) if isinstance(error, ConfigError) else error_text(error)
        (task.folder / "error").write_text(text)
        sys.exit(1)


def _number(name: str, value: Any) -> Any:
    """Return a number of NumPy or a tensor with one number as Python's."""
    if hasattr(value, "item"):
        with suppress(RuntimeError, ValueError):  # several numbers
            value = value.item()
    return value if isinstance(value, bool | int | float) else repr(value)[:80]


@contextmanager
def _paused(rng: RngStream) -> Iterator[None]:
    """Within this the stream is left, so that it can be read or set."""
    rng.__exit__(None, None, None)
    try:
        yield
    finally:
        rng.__enter__()
