"""The contestants: ways to train all members of a group. Each returns accuracies, to show that speed costs none."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

import torch

import nasflow.training.warm  # noqa: F401 - as nasflow's workers do
from benchmarks.merging.group import ROOT, Group
from benchmarks.merging.plain import Manner, train
from nasflow.job.events import Epoch, Event, Evicted, Final
from nasflow.job.spec import JobSpec
from nasflow.training.training_job import TrainingJob


@dataclass(frozen=True)
class Outcome:
    """The results of one run of a contestant.

    Attributes:
        accuracies: accuracies after the last epoch, by trial.
        figures: other results, by name; seconds are those of the members that were trained.
    """

    accuracies: dict[int, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The mean accuracy, NaN if nothing was scored."""
        return statistics.fmean(self.accuracies.values()) if self.accuracies else float("nan")


class Contestant(ABC):
    """One way to train a group.

    Args:
        name: the name of its row.
        group: what it trains; only a sample of the whole group if its time is proportional to the members.
        members: the number of members of the whole group, to which a sample's time is scaled.
    """

    def __init__(self, name: str, group: Group, members: int | None = None):
        self.name = name
        self.group = group
        self.scale = (members or len(group)) / len(group)

    @abstractmethod
    def run(self) -> Outcome:
        """Train the group from scratch."""

    def clean(self) -> None:
        """Remove the files of a run; not timed."""
        return


class Sequential(Contestant):
    """(b) and (c): one member after the other in this warm process, plain PyTorch, the data loaded once."""

    def __init__(self, name: str, group: Group, members: int | None = None, manner: Manner | None = None):
        super().__init__(name, group, members)
        self._manner = manner or Manner()

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        data = self.group.load()
        assert data.validation is not None
        accuracies = {
            member.trial: train(self.group.trial(member), data.train, data.validation, self._manner)
            for member in self.group.members
        }
        return Outcome(accuracies)


class Processes(Contestant):
    """(a): a process per trial, `at_once` side by side; each imports torch and reads its batches from a file.

    Figures: `training_seconds`, the sum of what the trials took without their start; `peak_bytes` of one process.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        folder: Path,
        *,
        members: int | None = None,
        manner: Manner | None = None,
        at_once: int = 1,
    ):
        super().__init__(name, group, members)
        self._at_once = at_once
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        data = group.load()
        loaders = [data.train, data.validation]
        batches = [(tuple(t.cpu() for t in loader.tensors), loader.batch_size, loader.shuffle) for loader in loaders]  # type: ignore[union-attr]
        torch.save(batches, self._folder / "batches.pt")
        for member in group.members:
            own = {"trial": asdict(group.trial(member)), "manner": asdict(manner or Manner())}
            given = {**own, "batches": str(self._folder / "batches.pt")}
            (self._folder / f"{member.trial}.json").write_text(json.dumps(given))

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        waiting = [member.trial for member in self.group.members]
        running: dict[int, subprocess.Popen[str]] = {}
        told: dict[int, dict[str, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._at_once:
                trial = waiting.pop(0)
                running[trial] = self._start(trial)
            trial = self._first_to_end(running)
            process = running.pop(trial)
            output, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"the process of trial {trial} exited with code {process.returncode}")
            told[trial] = json.loads(output)
        figures = {
            "training_seconds": sum(line["seconds"] for line in told.values()),
            "peak_bytes": max(line["peak_bytes"] for line in told.values()),
        }
        return Outcome({trial: line["accuracy"] for trial, line in told.items()}, figures)

    def _start(self, trial: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.merging.trial", str(self._folder / f"{trial}.json")]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def _first_to_end(running: dict[int, subprocess.Popen[str]]) -> int:
        """Return the trial of the process that first printed its line, which it does at its end."""
        pipes = {process.stdout: trial for trial, process in running.items()}
        return pipes[wait(pipes)[0]]  # type: ignore[index,arg-type]


class Nasflow(Contestant):
    """(d): one job in this process, as nasflow's runner runs it.

    Figures: `step_seconds`, the members' shares of training and validation steps from their epochs' events.

    Args:
        every_epochs: epochs between checkpoints; in any case every member has one when the job begins and ends.
    """

    def __init__(self, name: str, group: Group, folder: Path, every_epochs: int = 1):
        super().__init__(name, group)
        self._every_epochs = every_epochs
        self._root = Path(tempfile.mkdtemp(dir=folder))

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        events = run_job(self.group.job("job", self._every_epochs), self._root)
        steps = sum(event.seconds for event in events if isinstance(event, Epoch))
        return Outcome(accuracies_of(events), {"step_seconds": steps})

    def clean(self) -> None:
        """Remove the checkpoints, so that the next run resumes nothing."""
        shutil.rmtree(self._root)
        self._root.mkdir()


def run_job(spec: JobSpec, root: Path) -> list[Event]:
    """Run a job in this process. Return its events."""
    events: list[Event] = []
    TrainingJob(spec, root, events.append).run()
    return events


def accuracies_of(events: list[Event]) -> dict[int, float]:
    """Return the final accuracies by trial. Raises RuntimeError if a member failed."""
    if failed := [event for event in events if isinstance(event, Evicted)]:
        raise RuntimeError(f"trial {failed[0].trial} failed: {failed[0].error}")
    return {event.trial: event.metrics["val_accuracy"] for event in events if isinstance(event, Final)}
