"""A trial that is trained by its own program: its record, its process, and its reports."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from nasflow.checkpoint.store import CheckpointStore
from nasflow.clean_text import one_line
from nasflow.config.search import CheckpointConfig, CommandConfig, FunctionConfig, ProgramConfig
from nasflow.errors import TrialError
from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.function import find_program, program_path
from nasflow.job import reports
from nasflow.job.spec import JobSpec, MemberSpec, program_dir
from nasflow.training.member.metrics.reporting import record_of, refuse_losses
from nasflow.training.member.optimization import EarlyStop
from nasflow.training.program.followed import FollowedTrial
from nasflow.training.program.function import END, GO_ON, Task
from nasflow.training.program.process import Process
from nasflow.training.program.reports import Reports
from nasflow.training.program.turn import own_turn

_POLL = 0.01  # seconds between two looks at the reports
_LEAVES = 60.0  # seconds in which a program may end by itself once nothing that it trains counts any more


class ProgramTrial(FollowedTrial):
    """A trial of `kind: function` or `command`.

    Args:
        job: of the trial.
        spec: the trial.
        root: below which its folder is.
        candidate: what its architecture gives; the model is not used.
    """

    def __init__(self, job: JobSpec, spec: MemberSpec, root: Path, candidate: Candidate):
        super().__init__(spec.trial, candidate.parameters, candidate.epochs)
        self._job, self._spec, self._config = job, spec, cast(ProgramConfig, candidate.config)
        self._folder = program_dir(root, spec.trial)
        self._saved: dict[str, Any] | None = None  # by its function, with the epoch it was of
        self._process: Process | None = None
        self._reports = self._new_reports()

    def state_to_save(self) -> dict[str, Any]:
        """Return its record, and what its function saved last."""
        return {
            **record_of(self),
            "program": self._saved,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.load_record(state)
        self._saved = state["program"]

    def train_epoch(self, look_up: Callable[[], None]) -> dict[str, float] | None:
        """Return the metrics of the next epoch; None if the program has ended without one.

        Args:
            look_up: called while it waits; what it raises ends the wait.

        Raises:
            TrialError: the program has failed, can't be started, or reported something else.
            ConfigError: there is no such program.
        """
        epoch, began = self.finished_epochs + 1, time.monotonic()
        while True:
            code = None if self._process is None else self._process.exit_code()
            if code is not None:
                self._reports.end()
            metrics = self._take(epoch)
            if metrics is not None:
                self._keep_saved(epoch)
                self.seconds.append(time.monotonic() - began)
                return metrics
            if code is not None:
                self._refuse_failed(code, look_up)
                return None
            if self._process is None:
                with own_turn(self._folder.with_name(".program.lock"), look_up) as turn:
                    self._process = self._start(turn)
            look_up()
            time.sleep(_POLL)

    def end_epoch(self, metrics: dict[str, float] | None) -> None:
        """Take the metrics of an epoch, or that there are no further ones; decide on early stopping.

        Raises:
            TrialError: there is no epoch at all, or early stopping misses its metric.
        """
        if metrics is None:
            if not self.history:
                raise TrialError("the program ended without a report; report the metrics of each epoch")
            self.stop()
            return
        self.history.append(metrics)
        self.finished_epochs += 1
        stopping = self._config.early_stopping
        stops = False
        if stopping is not None:
            early_stop = EarlyStop(stopping)
            stops = [early_stop.update(epoch) for epoch in self.history][-1]
        self.finished = stops or self.finished_epochs >= self.epochs
        self.stopped_early = stops and self.finished_epochs < self.epochs

    def go_on(self) -> None:
        """Let a function that waits after a report go on, or end; a program that had all epochs may end by itself."""
        if self._process is None:
            return
        is_told = isinstance(self._config, FunctionConfig)
        if is_told:
            self._process.answer(END if self.finished else GO_ON)
        if self.finished and (is_told or not self.stopped_early):
            self._process.leave(_LEAVES)

    def close(self) -> None:
        """End its processes."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _checkpoints(self) -> CheckpointStore:
        """Return where its function saves."""
        return CheckpointStore(self._folder / "checkpoint", 1)

    def _new_reports(self) -> Reports:
        return Reports(self._folder / "reports", waits=isinstance(self._config, FunctionConfig))

    def _take(self, epoch: int) -> dict[str, float] | None:
        try:
            # before its process has begun, the file is that of an earlier one
            metrics = self._reports.take(epoch, None if self._process is None else self.pass_over)
            if metrics is not None:
                self._refuse(metrics, epoch)
        except TrialError:  # tried again, it begins anew
            self.close()
            if self._folder.exists():
                shutil.rmtree(self._folder)
            raise
        return metrics

    def _start(self, turn: BinaryIO) -> Process:
        environment = {**os.environ, "PATH": program_path()}
        if isinstance(self._config, CommandConfig):
            return self._start_command(self._config, environment, turn)
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        self._reports = self._new_reports()
        if self._saved is not None:
            self._checkpoints().save(self._saved["epoch"], self._saved)
        without = {"members": [self._spec], "peers": [], "kernel_costs": {}, "checkpoint": CheckpointConfig()}
        task = Task(
            job=self._job.model_copy(update=without),
            trial=self.number,
            reported=self.finished_epochs,
            folder=self._folder,
        )
        file = self._folder / "task.json"
        file.write_text(task.model_dump_json())
        command = [sys.executable, "-P", "-m", "nasflow.training.program.function_program", str(file)]
        return Process(command, self._job.base_dir, environment, turn, asks=True)

    def _start_command(self, config: CommandConfig, environment: dict[str, str], turn: BinaryIO) -> Process:
        command = find_program(config, self._job.base_dir)
        checkpoints, described = self._folder / "checkpoints", self._folder / "trial.json"
        checkpoints.mkdir(parents=True, exist_ok=True)
        self._reports.begin(goes_on=any(checkpoints.iterdir()))
        described.write_text(json.dumps(self._described(config.params)))
        own = {
            reports.TRIAL: str(described),
            reports.METRICS: str(self._folder / "reports"),
            reports.SEED: str(self._spec.seed),
            reports.CHECKPOINTS: str(checkpoints),
        }
        return Process(command, self._job.base_dir, environment | own, turn)

    def _described(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "trial": self.number,
            "architecture": dict(self._spec.architecture),
            "params": params,
            "seed": self._spec.seed,
            "epochs": self.epochs,
            "reported": self.finished_epochs,
        }

    def _keep_saved(self, epoch: int) -> None:
        """Take over what the function has saved for this epoch."""
        store = self._checkpoints()
        newest = max((saved for saved in store.epochs() if saved <= epoch), default=0)
        if newest > (0 if self._saved is None else self._saved["epoch"]):
            self._saved = store.load(newest)

    def _refuse(self, metrics: dict[str, float], epoch: int) -> None:
        stopping = self._config.early_stopping
        needed = [("objectives", objective.metric) for objective in self._job.objectives]
        needed += [] if stopping is None else [("evaluator.early_stopping", stopping.metric)]
        for key, name in needed:
            if name not in {*metrics, "parameters"}:
                raise TrialError(
                    f"{key}: no metric '{name}' was reported in epoch {epoch}; there are: "
                    f"{', '.join(map(one_line, sorted(metrics)))}"
                )
        refuse_losses(metrics, epoch)

    def _refuse_failed(self, code: int, look_up: Callable[[], None]) -> None:
        """Raise TrialError if the program has failed."""
        if code == 0:
            return
        if code in (-signal.SIGTERM, 128 + signal.SIGTERM):  # the job may be told, too
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                look_up()
                time.sleep(_POLL)
        error = self._folder / "error"
        if isinstance(self._config, FunctionConfig) and error.exists():
            raise TrialError(error.read_text())
        how = f"exited with code {code}"
        if code < 0:
            how = f"was ended by {_signal_name(-code)}"
            how += ", as when the machine has too little memory" if code == -signal.SIGKILL else ""
        said = "" if self._process is None else self._process.last_errors()
        raise TrialError(f"the trial's program {how}" + (f"\n{said}" if said else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
