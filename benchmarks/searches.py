"""The same search, MLPs of given architectures on digits, through nasflow, through NNI, and through Optuna."""

import json
import statistics
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import yaml

from benchmarks.commands import ContestantError, PrefectServer, install, run_commands
from benchmarks.optuna_worker import LEARNING_RATES
from nasflow.config.search import parse_config
from nasflow.evaluator.candidate import candidate_space
from nasflow.space.architecture import Architecture
from nasflow.strategy.random_search import RandomSearch
from nasflow.study.study import Study

if TYPE_CHECKING:
    from tests.sshd import Sshd

SLOTS = 2
NAME = "digits-mlp"
REQUIREMENTS = Path(__file__).with_name("nni_side") / "requirements.txt"


@dataclass(frozen=True)
class Workload:
    """The searched architectures: the first `trials` proposals of nasflow's random search, in its order."""

    trials: int
    epochs: int
    rounds: int
    seed: int

    def config(self, folder: Path) -> dict[str, Any]:
        """Return the search config: nasflow's defaults, except for two slots and jobs without a size limit."""
        return {
            "name": NAME,
            "space": {"target": "nasflow.space.ready:mlp"},
            "evaluator": {
                "kind": "classification",
                "data": {"target": "nasflow.evaluator.data:DigitsRows", "params": {"batch_size": 64}},
                "epochs": self.epochs,
                "optimizer": {"name": "adamw", "lr": {"float": list(LEARNING_RATES), "log": True}},
            },
            "strategy": {"kind": "random"},
            "budget": {
                "rounds": self.rounds,
                "trials_per_round": -(-self.trials // self.rounds),
                "trials": self.trials,
            },
            "merge": {"max_members": self.trials},
            "training_service": {"kind": "local", "slots": SLOTS},
            "store": f"sqlite:///{folder / 'nasflow.db'}",
            "seed": self.seed,
        }

    @cached_property
    def architectures(self) -> list[Architecture]:
        """The architectures that every contestant trains."""
        config = parse_config(self.config(Path()))
        space = candidate_space(config.space, config.evaluator, Path())
        return RandomSearch(space, config.seed).ask(self.trials)


@dataclass(frozen=True)
class Outcome:
    """One run of a contestant.

    Attributes:
        wall: seconds from the command to its end.
        span: seconds from the start of the first trial to the end of the last one, by the contestant's own record.
        accuracies: on validation data after the last epoch, in the order of the architectures.
    """

    wall: float
    span: float
    accuracies: list[float]

    @property
    def accuracy(self) -> float:
        """The mean accuracy."""
        return statistics.mean(self.accuracies)


class Contestant(ABC):
    """Base class of ways to run the search. `trials` is how many of the workload's architectures it trains."""

    name: str

    def __init__(self, workload: Workload, trials: int):
        self.workload = workload
        self.architectures = workload.architectures[:trials]

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Install its requirements. Raises ContestantError."""

    @abstractmethod
    def run(self, folder: Path, seed: int) -> Outcome:
        """Run the search in an empty folder. Raises ContestantError."""

    def _write(self, folder: Path) -> Path:
        """Write a JSON file of the architectures."""
        file = folder / "architectures.json"
        file.write_text(json.dumps([dict(architecture) for architecture in self.architectures]))
        return file

    def _in_order(self, found: Sequence[tuple[Mapping[str, Any], float]]) -> list[float]:
        """Return accuracies in the order of the architectures; each must have been trained once, and no others."""
        expected = {architecture: place for place, architecture in enumerate(self.architectures)}
        places = {expected.get(Architecture(values)): accuracy for values, accuracy in found}
        if len(found) != len(expected) or places.keys() != set(expected.values()):
            raise ContestantError(f"{self.name} trained {len(found)} architectures that are not the given ones")
        return [places[place] for place in range(len(expected))]


class NasflowRun(Contestant):
    """`nasflow run CONFIG` against a running Prefect server."""

    name = "nasflow run"

    def __init__(
        self,
        workload: Workload,
        server: PrefectServer,
        name: str = name,
        service: Mapping[str, Any] | None = None,
    ):
        super().__init__(workload, workload.trials)
        self.name = name
        self._server = server
        self._service = service

    def run(self, folder: Path, seed: int) -> Outcome:
        """Run the search. The seeds of nasflow's trials follow from the config alone, so `seed` has no effect.

        nasflow's measured costs of kernels are kept beside the folder, for the next run on this workload only.
        """
        config = folder / "search.yaml"
        values = self.workload.config(folder)
        if self._service is not None:
            values["training_service"] = dict(self._service)
        config.write_text(yaml.safe_dump(values))
        command = [sys.executable, "-m", "nasflow.flows.cli", "run", config]
        cache = folder.parent / f"cache-{len(self.architectures)}"
        environment = {**self._server.environment, "XDG_CACHE_HOME": str(cache)}
        wall = run_commands([command], folder, environment, timeout=60 + 20 * len(self.architectures))
        study = Study.load(f"sqlite:///{folder / 'nasflow.db'}", NAME)
        try:
            trials, attempts = study.trials(), study.attempts()
        finally:
            study.close()
        if unscored := [trial for trial in trials if not trial.status.scored]:
            raise ContestantError(f"trial {unscored[0].number} is {unscored[0].status}: {unscored[0].error}")
        began = min(attempt.started_at for attempt in attempts if attempt.started_at)
        ended = max(attempt.ended_at for attempt in attempts if attempt.ended_at)
        found = [(trial.architecture, trial.metrics["val_accuracy"]) for trial in trials]
        return Outcome(wall, (ended - began).total_seconds(), self._in_order(found))


class OptunaRun(Contestant):
    """An Optuna study in SQLite; two processes train its trials with plain Lightning."""

    name = "Optuna + Lightning"

    def run(self, folder: Path, seed: int) -> Outcome:
        """Run two workers; each trains half of the trials, in any split."""
        storage = f"sqlite:///{folder / 'optuna.db'}"
        given = self._write(folder)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
        count = len(self.architectures)
        shares = [share for slot in range(SLOTS) if (share := len(range(slot, count, SLOTS)))]
        options = ["--epochs", self.workload.epochs, "--seed", seed]
        commands = [
            [sys.executable, "-m", "benchmarks.optuna_worker", storage, NAME, given, share, *options]
            for share in shares
        ]
        wall = run_commands(commands, folder, {}, timeout=60 + 20 * count)
        trials = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        began = min(trial.datetime_start for trial in trials if trial.datetime_start)
        ended = max(trial.datetime_complete for trial in trials if trial.datetime_complete)
        found = [(trial.params, float(trial.value or 0.0)) for trial in trials]
        return Outcome(wall, (ended - began).total_seconds(), self._in_order(found))


class NniRun(Contestant):
    """An NNI 3.0 experiment, two trials at a time, each a process of plain PyTorch.

    Args:
        workload: the architectures to search.
        trials: how many of them.
        folder: the folder of NNI's environment.
        host: an sshd on this machine for its remote training service; None for its local one.
    """

    name = "NNI 3.0 local"

    def __init__(self, workload: Workload, trials: int, folder: Path, host: "Sshd | None" = None):
        super().__init__(workload, trials)
        self._host = host
        if host is not None:
            self.name = "NNI 3.0 remote"
        self._environment = folder / "nni-environment"
        self._home = folder / "nni-home"
        self._python = self._environment / "bin" / "python"

    def prepare(self) -> None:
        """Install NNI into its own environment."""
        install(self._environment, REQUIREMENTS)

    def run(self, folder: Path, seed: int) -> Outcome:
        """Run the experiment, with its own home folder, because NNI keeps a manifest of all experiments there."""
        self._home.mkdir(exist_ok=True)
        given, result = self._write(folder), folder / "result.json"
        command: list[object] = [
            self._python,
            "-m",
            "benchmarks.nni_side.experiment",
            given,
            result,
            "--folder",
            folder / "nni",
        ]
        environment = {
            "HOME": str(self._home),
            "BENCHMARK_EPOCHS": str(self.workload.epochs),
            "BENCHMARK_SEED": str(seed),
        }
        if self._host is not None:
            host = self._host
            command += ["--remote", json.dumps({"port": host.port, "user": host.user, "key": str(host.user_key)})]
        wall = run_commands([command], folder, environment, timeout=120 + 60 * len(self.architectures))
        told = json.loads(result.read_text())
        if failed := [status for status in told["statuses"] if status != "SUCCEEDED"]:
            raise ContestantError(f"{len(failed)} of {len(told['statuses'])} NNI trials ended as {failed[0]}")
        by_lr = {architecture["optimizer.lr"]: architecture for architecture in self.architectures}
        found = [(by_lr.get(lr, {}), accuracy) for lr, accuracy in told["accuracy_by_lr"]]
        return Outcome(wall, told["ended"] - told["began"], self._in_order(found))
