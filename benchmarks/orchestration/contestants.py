"""Ways to run a search with empty trials: nasflow with and without Prefect, Optuna, Ray Tune, NNI."""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.commands import ContestantError, PrefectServer, install, run_commands
from benchmarks.searches import REQUIREMENTS as NNI_REQUIREMENTS
from benchmarks.searches import SLOTS
from nasflow.study.study import Study

NAME = "nothing"
RAY_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_QUIET = 7.0  # after this many seconds without new records the server has recorded all; it writes at least every 5 s


@dataclass(frozen=True)
class Outcome:
    """One run of a contestant.

    Attributes:
        wall: seconds from the command to its end.
        rounds: nasflow's seconds per trial, by round.
        recorded: seconds from the command's end until the Prefect server recorded nothing more.
    """

    wall: float
    rounds: Sequence[float] = ()
    recorded: float = 0.0


class Contestant(ABC):
    """Base class of ways to run a number of empty trials. `does` describes the remaining work of each trial."""

    name: str
    does: str
    needs_server = False

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Install its requirements. Raises ContestantError."""

    @abstractmethod
    def run(self, folder: Path, trials: int) -> Outcome:
        """Run the trials in an empty folder. Raises ContestantError."""


class NasflowRun(Contestant):
    """`nasflow run CONFIG` against a running Prefect server."""

    name = "nasflow run"
    does = (
        "is proposed, built, merged into a job of {batch}, trained for one step, scored, "
        "checkpointed before and after, recorded and shown in Prefect"
    )
    needs_server = True

    def __init__(self, server: PrefectServer, round: int, batch: int):
        self._server, self._round, self._batch = server, round, batch
        self.does = self.does.format(batch=batch)

    def run(self, folder: Path, trials: int) -> Outcome:
        config = self._write(folder, trials)
        command = [sys.executable, "-m", "nasflow.flows.cli", "run", config]
        environment = {**self._server.environment, "XDG_CACHE_HOME": str(folder.parent / "cache")}
        wall = run_commands([command], folder, environment, timeout=120 + trials)
        return Outcome(wall, rounds_of(folder, trials), self._recorded())

    def _write(self, folder: Path, trials: int) -> Path:
        file = folder / "search.yaml"
        file.write_text(yaml.safe_dump(search_config(folder, trials, self._round, self._batch)))
        return file

    def _recorded(self) -> float:
        began = news = time.monotonic()
        count = self._server.count_task_runs()
        while time.monotonic() - news < _QUIET:
            time.sleep(0.2)
            if (now := self._server.count_task_runs()) != count:
                count, news = now, time.monotonic()
        return news - began


class NasflowPlain(NasflowRun):
    """The same session, jobs and records, driven by a loop instead of flows and tasks."""

    name = "nasflow, no Prefect"
    does = "the same, but for Prefect: a plain loop of one thread a job in place of flows and tasks"
    needs_server = False

    def run(self, folder: Path, trials: int) -> Outcome:
        config = self._write(folder, trials)
        command = [sys.executable, "-m", "benchmarks.orchestration.plain", config]
        environment = {"XDG_CACHE_HOME": str(folder.parent / "cache")}
        wall = run_commands([command], folder, environment, timeout=120 + trials)
        return Outcome(wall, rounds_of(folder, trials))


class OptunaBare(Contestant):
    """`study.optimize` in one process."""

    def __init__(self, stored: bool):
        self._stored = stored
        self.name = "Optuna, SQLite" if stored else "Optuna, in memory"
        self.does = "calls a function that returns a number, in the study's own process"

    def run(self, folder: Path, trials: int) -> Outcome:
        storage = ["--storage", f"sqlite:///{folder / 'optuna.db'}"] if self._stored else []
        command = [sys.executable, "-m", "benchmarks.orchestration.optuna", trials, *storage]
        return Outcome(run_commands([command], folder, {}, timeout=120 + trials))


class RayTune(Contestant):
    """`tune.Tuner(...).fit()` on a Ray that it starts itself, in its own environment."""

    def __init__(self, work_dir: Path, reuse: bool):
        self._environment, self._reuse = work_dir / "ray-environment", reuse
        self.name = "Ray Tune, reuse_actors" if reuse else "Ray Tune"
        self.does = f"reports a number, in {'an actor that is there' if reuse else 'its own actor'}"

    def prepare(self) -> None:
        install(self._environment, RAY_REQUIREMENTS)

    def run(self, folder: Path, trials: int) -> Outcome:
        command: list[object] = [self._environment / "bin" / "python", "-m", "benchmarks.orchestration.ray", trials]
        command += ["--slots", SLOTS, "--folder", folder, *(["--reuse"] if self._reuse else [])]
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}  # else it keeps a token at home
        return Outcome(run_commands([command], folder, environment, timeout=120 + 5 * trials))


class NniLocal(Contestant):
    """An NNI 3.0 experiment on its local service."""

    name = "NNI 3.0 local"
    does = "reports a number, in its own program, which imports nothing but NNI"

    def __init__(self, work_dir: Path):
        self._environment, self._home = work_dir / "nni-environment", work_dir / "nni-home"

    def prepare(self) -> None:
        install(self._environment, NNI_REQUIREMENTS)

    def run(self, folder: Path, trials: int) -> Outcome:
        self._home.mkdir(exist_ok=True)
        given, result = folder / "architectures.json", folder / "result.json"
        given.write_text(json.dumps([{"optimizer.lr": 1e-3 * (1 + number)} for number in range(trials)]))
        command = [self._environment / "bin" / "python", "-m", "benchmarks.nni_side.experiment", given, result]
        options = ["--folder", folder / "nni", "--trial", "benchmarks.nni_side.nothing"]
        wall = run_commands([[*command, *options]], folder, {"HOME": str(self._home)}, timeout=120 + 60 * trials)
        statuses = json.loads(result.read_text())["statuses"]
        if statuses != ["SUCCEEDED"] * trials:
            raise ContestantError(f"of {trials} NNI trials these came to an end: {statuses}")
        return Outcome(wall)


def search_config(folder: Path, trials: int, round: int, batch: int) -> dict[str, Any]:
    """Return nasflow's defaults, except for two slots and the sizes of rounds and jobs."""
    return {
        "name": NAME,
        "space": {"target": "benchmarks.orchestration.trial:build"},
        "evaluator": {
            "kind": "classification",
            "data": {"target": "benchmarks.orchestration.trial:rows"},
            "epochs": 1,
            "optimizer": {"name": "sgd", "lr": {"float": [1e-3, 1e-2], "log": True}},
        },
        "strategy": {"kind": "random"},
        "budget": {"rounds": -(-trials // round), "trials_per_round": round, "trials": trials},
        "merge": {"max_members": batch, "jobs_per_slot": -(-min(trials, round) // (batch * SLOTS))},
        "training_service": {"kind": "local", "slots": SLOTS},
        "store": f"sqlite:///{folder / 'nasflow.db'}",
    }


def rounds_of(folder: Path, trials: int) -> list[float]:
    """Return seconds per trial of each round of the study in `folder`. Raises ContestantError for untrained trials."""
    study = Study.load(f"sqlite:///{folder / 'nasflow.db'}", NAME)
    try:
        trained = [trial for trial in study.trials() if trial.status.scored and trial.replayed_from is None]
        if len(trained) != trials:
            raise ContestantError(f"{len(trained)} of {trials} trials are trained")
        sizes = [sum(trial.round == record.number for trial in trained) for record in study.rounds()]
        return [record.seconds / size for record, size in zip(study.rounds(), sizes, strict=True)]
    finally:
        study.close()
