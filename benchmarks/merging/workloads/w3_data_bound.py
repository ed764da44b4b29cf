"""W3: bound by data. Generated images, cropped, flipped, jittered and normalized one by one in `__getitem__`.

For each ratio r the augmentation is made to cost about r model-steps. All contestants use the same DataLoader. A merged
job loads the data once, sequential trials once each. So the floor is the time of (b) less all data passes but one; it
includes only the sharing of data, not the fusion of members. Calls of `__getitem__` are counted.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.merging.contest import (
    NASFLOW,
    SEQUENTIAL,
    STEPS,
    TUNED,
    accuracy_differences,
    add_contest_arguments,
    gauge,
    machine_load,
    sharing_facts,
    sharing_floors,
)
from benchmarks.merging.contestants import Contestant, Nasflow, Outcome, Sequential
from benchmarks.merging.group import NEVER, Group, classification, draw
from benchmarks.merging.plain import Manner, seed_epoch, train
from benchmarks.merging.report import Report
from benchmarks.merging.timing import interleave
from benchmarks.merging.workloads.data import DRAWN, data_bound
from nasflow.config.search import DataConfig, Target

DATA = "one pass over the data, alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    add_contest_arguments(parser, members=8, epochs=1, sequential=0)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1.0, 4.0], metavar="R")
    parser.add_argument("--images", type=int, default=5000)


def make_group(members: int, epochs: int, seed: int, images: int, rounds: int) -> Group:
    """Return small convolutional networks on augmented images in batches of 64."""
    data = DataConfig(target="benchmarks.merging.workloads.data:data_bound", params={"count": images, "rounds": rounds})
    space = Target(target="benchmarks.merging.workloads.spaces:small_cnn")
    return draw(space, classification(data, epochs), members, seed)


class _DataAlone(Contestant):
    """Loads the data of a job, and trains nothing."""

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        data = self.group.load()
        for seed in self.group.epoch_seeds:
            seed_epoch(seed)
            for loader in (data.train, data.validation):
                for _ in loader or ():
                    pass
        return Outcome()


class _Counted(Contestant):
    """Another contestant, with the number of `__getitem__` calls in its figures, as `items`."""

    def __init__(self, inner: Contestant):
        super().__init__(inner.name, inner.group)
        self._inner = inner
        self.clean = inner.clean  # type: ignore[method-assign]

    def run(self) -> Outcome:
        """See `Contestant.run`."""
        DRAWN.clear()
        outcome = self._inner.run()
        return Outcome(outcome.accuracies, {**outcome.figures, "items": DRAWN["items"]})


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results, for every ratio."""
    return [_measure(ratio, arguments, folder) for ratio in arguments.ratios]


def _measure(ratio: float, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    def group_of(rounds: int) -> Group:
        return make_group(arguments.members, arguments.epochs, arguments.seed, arguments.images, rounds)

    group = group_of(calibrate(ratio, group_of(0)))
    entrants: list[Contestant] = [
        _DataAlone(DATA, group),
        Sequential(SEQUENTIAL, group),
        Sequential(TUNED, group, manner=Manner(tuned=True)),
        Nasflow(NASFLOW, group, folder),
        Nasflow(STEPS, group, folder, NEVER),
    ]
    laps = interleave([_Counted(entrant) for entrant in entrants], arguments.repeats, gauge)
    members = len(group)
    data, sequential = laps.seconds(DATA, "cpu"), laps.seconds(SEQUENTIAL, "cpu")
    facts = {
        "data_cost_in_model_steps": f"{data / (sequential / members - data):.2f} (asked for: {ratio})",
        "data_wait_share_of_sequential": data * members / sequential,
        **sharing_facts(laps, DATA, members),
        "data_passes": _passes(group, arguments.images, {name: laps.figure(name, "items") for name in laps.timed}),
        **accuracy_differences(laps),
        "load": machine_load(laps),
    }
    steps = members * group.epochs * -(-arguments.images // 64)
    title = f"W3: {members} members, augmentation of about {ratio} model-steps"
    floor = statistics.median(sharing_floors(laps, DATA, members, "wall"))
    report = Report(title, laps, steps, floor, [SEQUENTIAL, TUNED], facts)
    report.show()
    return report.as_json()


def _passes(group: Group, images: int, items: dict[str, float]) -> dict[str, float]:
    """Return how often each contestant loaded the whole training set."""
    return {name: count / (images * group.epochs) for name, count in items.items()}


def calibrate(ratio: float, group: Group) -> int:
    """Return the rounds of colour jitter with which a batch costs `ratio` times the members' mean step."""
    batch = _batch_seconds(0)
    one_round = (_batch_seconds(20) - batch) / 20
    return max(0, round((ratio * _step_seconds(group) - batch) / one_round))


def _batch_seconds(rounds: int) -> float:
    loader, _ = data_bound(count=256, validation=1, rounds=rounds)
    return _seconds(lambda: list(loader)) / len(loader)


def _step_seconds(group: Group) -> float:
    """Return the seconds of a training step, including everything except data; the mean over the members."""
    loader, validation = data_bound(count=64, rounds=0)
    batches = [next(iter(loader))] * 8
    trials = [replace(group.trial(member), epoch_seeds=[0]) for member in group.members]
    return statistics.fmean(_seconds(partial(train, trial, batches, validation, Manner())) / 8 for trial in trials)


def _seconds(action: Callable[[], Any]) -> float:
    """Return seconds of processor time: the median of three, after one warm-up."""
    found = []
    for _ in range(4):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])
