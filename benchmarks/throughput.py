"""Trials per minute: nasflow against the same candidates trained one by one with plain Lightning in one process.

`python -m benchmarks.throughput --trials 16 --epochs 8 --repeats 5` interleaves, in every repeat:

- `lightning`: one plain Trainer per candidate with a DataLoader, one after the other, one thread;
- `lightning, all threads`: the same, but torch may use every core;
- `nasflow, one job`: all candidates in one job in this process, one thread, checkpoints after every epoch included;
- `nasflow, service`: the local service with one warm worker per core, one thread each, checkpoints included.

The candidates, the data, the epochs and the optimizers are the same; all are warm (imports done, workers started).
"""

import argparse
import json
import logging
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_lightning import Trainer
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from nasflow.config.search import CheckpointConfig, ClassificationConfig, DataConfig, OptimizerConfig, Target
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.values import FloatRange
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.loading.data_source import load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.job.events import Event, Evicted, Final, parse_event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.training.training_job import TrainingJob
from nasflow.training_service.local.service import LocalService

SPACES = {
    "cells": ("nasflow.space.ready:cell_cnn", "nasflow.evaluator.data:Digits"),
    "mlp": ("nasflow.space.ready:mlp", "nasflow.evaluator.data:DigitsRows"),
}


class Contest:
    """The candidates, and a method per contestant that trains them all and returns their mean accuracy."""

    def __init__(self, space: str, trials: int, epochs: int):
        target, data = SPACES[space]
        self._space = Target(target=target)
        optimizer = OptimizerConfig(name="adamw", lr=FloatRange(float=(1e-3, 1e-2), log=True))
        self._evaluator = ClassificationConfig(data=DataConfig(target=data), epochs=epochs, optimizer=optimizer)
        self._candidates = candidate_space(self._space, self._evaluator, Path())
        self._architectures = [self._candidates.sample(random.Random(seed)) for seed in range(trials)]
        self._folder = Path(tempfile.mkdtemp(prefix="nasflow-benchmark-"))
        self._runs = 0
        cores = len(os.sched_getaffinity(0))
        self._service = LocalService(LocalServiceConfig(slots=cores), self._folder / "service")
        self._slots = cores

    def lightning(self) -> float:
        """Train with one Trainer after the other."""
        scores = []
        for seed, architecture in enumerate(self._architectures):
            torch.manual_seed(seed)
            candidate = self._candidates.build(architecture)
            data = load_data(candidate.config.data, Path())
            train, validation = (
                DataLoader(TensorDataset(*loader.tensors), loader.batch_size, shuffle=loader.shuffle)  # type: ignore[attr-defined]
                for loader in (data.train, data.validation)
            )
            trainer = Trainer(
                accelerator="cpu",
                max_epochs=candidate.config.epochs,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
            )
            trainer.fit(make_evaluator(candidate.config, Path()).module(candidate.model), train, validation)
            scores.append(float(trainer.callback_metrics["val_accuracy"]))
        return statistics.mean(scores)

    def lightning_all_threads(self) -> float:
        """Train as `lightning` does, with every core."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        try:
            return self.lightning()
        finally:
            torch.set_num_threads(1)

    def one_job(self) -> float:
        """Train all in one job, in this process."""
        self._runs += 1
        events: list[Event] = []
        root = self._folder / f"job-{self._runs}"
        TrainingJob(self._spec("all", list(enumerate(self._architectures))), root, events.append).run()
        return _mean_accuracy(events)

    def service(self) -> float:
        """Train with the workers of the local service."""
        self._service.prepare()
        self._runs += 1
        numbered = [(self._runs * 1000 + seed, a) for seed, a in enumerate(self._architectures)]
        handles = [
            self._service.submit(self._spec(f"run-{self._runs}-{slot}", numbered[slot :: self._slots]))
            for slot in range(min(self._slots, len(numbered)))
        ]
        while not all(self._service.status(handle).status.finished for handle in handles):
            time.sleep(0.02)
        lines = [line for handle in handles for line in self._service.events(handle)[0]]
        return _mean_accuracy([parse_event(line) for line in lines])

    def close(self) -> None:
        """End the service's workers."""
        self._service.cleanup()

    def _spec(self, job_id: str, members: list[tuple[int, Architecture]]) -> JobSpec:
        return JobSpec(
            job_id=job_id,
            study="benchmark",
            space=self._space,
            evaluator=self._evaluator,
            data=self._evaluator.data,
            checkpoint=CheckpointConfig(),
            data_seed=0,
            base_dir=Path(),
            members=[MemberSpec(trial=number, architecture=a, seed=number) for number, a in members],
        )


def _mean_accuracy(events: list[Event]) -> float:
    if failed := [event for event in events if isinstance(event, Evicted)]:
        raise RuntimeError(f"a candidate failed: {failed[0].error}")
    return statistics.mean(event.metrics["val_accuracy"] for event in events if isinstance(event, Final))


def measure(contestants: dict[str, Callable[[], float]], repeats: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return seconds and mean accuracies of each contestant; all run once in every repeat, after one warm-up."""
    results: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in contestants}
    for repeat in range(repeats + 1):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            accuracy = contestant()
            if repeat:
                results[name][0].append(time.perf_counter() - began)
                results[name][1].append(accuracy)
    return results


def main() -> None:
    """Measure and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", choices=SPACES, default="cells")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    contest = Contest(arguments.space, arguments.trials, arguments.epochs)
    contestants = {
        "lightning": contest.lightning,
        "lightning, all threads": contest.lightning_all_threads,
        "nasflow, one job": contest.one_job,
        "nasflow, service": contest.service,
    }
    try:
        results = measure(contestants, arguments.repeats)
    finally:
        contest.close()
    base = statistics.median(results["lightning"][0])
    table = Table("contestant", "seconds (median)", "trials a minute", "against lightning", "mean accuracy")
    figures = {}
    for name, (seconds, accuracies) in results.items():
        median = statistics.median(seconds)
        rate = 60 * arguments.trials / median
        ratio = statistics.median(s / b for s, b in zip(seconds, results["lightning"][0], strict=True))
        figures[name] = {"seconds": seconds, "trials_per_minute": rate, "speed_up": 1 / ratio}
        row = (f"{median:.2f}", f"{rate:.1f}", f"{1 / ratio:.2f}x", f"{statistics.mean(accuracies):.4f}")
        table.add_row(name, *row)
    Console().print(table)
    print(json.dumps({"arguments": vars(arguments), "baseline_seconds": base, "results": figures}))


if __name__ == "__main__":
    main()
