"""W2: mixed cell networks on digits. Four positions of {3x3, 5x5, depthwise 3x3, 1x1, max-pool, skip} with batch-norm.

`--random-groups 100 --repeats 1` checks instead whether nasflow is ever slower: groups of random size are drawn from
the space, and each is trained by (b), (c) and (d). A job has fixed costs (to begin, plan and end) of about 0.05 s,
which matter for few epochs, so the steps are also compared alone.
"""

import argparse
import random
import statistics
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.merging.contest import (
    NASFLOW,
    SEQUENTIAL,
    STEPS,
    TUNED,
    add_contest_arguments,
    contest,
    step_speed_ups,
)
from benchmarks.merging.contestants import Contestant, Nasflow, Sequential
from benchmarks.merging.group import NEVER, Group, classification, draw
from benchmarks.merging.plain import Manner
from benchmarks.merging.report import show_facts
from benchmarks.merging.timing import Laps, interleave
from nasflow.config.search import DataConfig, Target

LINE = 0.97
"""The least acceptable speed of nasflow over the better of (b) and (c), for each group."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    add_contest_arguments(parser, members=16, epochs=4, sequential=0)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--random-groups", type=int, default=0, help="groups of 2 to --members members each")


def make_group(channels: int, members: int, epochs: int, seed: int) -> Group:
    """Return cell networks on images of digits in batches of 64."""
    space = Target(target="benchmarks.merging.workloads.spaces:cell_chain", params={"channels": channels})
    images = DataConfig(target="nasflow.evaluator.data:Digits")
    return draw(space, classification(images, epochs), members, seed)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    if arguments.random_groups:
        return [_never_slower(arguments, folder)]
    group = make_group(arguments.channels, arguments.members, arguments.epochs, arguments.seed)
    title = f"W2: {len(group)} mixed cell networks of {arguments.channels} channels, {group.epochs} epochs of digits"
    report = contest(title, group, arguments, folder)
    report.show()
    return [report.as_json()]


def _never_slower(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure the speed of (d) over the better of (b) and (c) on each of many random groups.

    A group below the line is run as often again, and all its runs count, because some fall below it by chance.
    """
    rng = random.Random(arguments.seed)
    groups = []
    for number in track(range(arguments.random_groups), "groups", transient=True):
        size = rng.randint(2, arguments.members)
        group = make_group(arguments.channels, size, arguments.epochs, seed=1000 * arguments.seed + number)
        groups.append(_measure(number, group, arguments.repeats, folder))
    slowest = sorted(groups, key=lambda group: group["speed_up"])[:5]
    facts = {
        "groups": f"{len(groups)} of 2 to {arguments.members} members, {arguments.channels} channels",
        **_summary("nasflow over the better of (b) and (c)", [group["speed_up"] for group in groups]),
        **_summary("the same without checkpoints", [group["speed_up_no_checkpoints"] for group in groups]),
        **_summary("its steps alone over them", [group["speed_up_of_steps"] for group in groups]),
        "slowest": ", ".join(f"{g['speed_up']:.3f}x (group {g['group']}, {g['members']} members)" for g in slowest),
        "load": statistics.median(group["load"] for group in groups),
    }
    show_facts(facts)
    return {"title": f"W2: random groups of {arguments.channels} channels", **facts, "every_group": groups}


def _measure(number: int, group: Group, repeats: int, folder: Path) -> dict[str, Any]:
    contestants: list[Contestant] = [
        Sequential(SEQUENTIAL, group),
        Sequential(TUNED, group, manner=Manner(tuned=True)),
        Nasflow(NASFLOW, group, folder),
        Nasflow(STEPS, group, folder, NEVER),
    ]
    laps = interleave(contestants, repeats)
    if _over_better(laps, NASFLOW) < LINE:
        interleave(contestants, repeats, laps=laps)
    return {
        "group": number,
        "members": len(group),
        "speed_up": _over_better(laps, NASFLOW),
        "speed_up_no_checkpoints": _over_better(laps, STEPS),
        "speed_up_of_steps": min(step_speed_ups(laps, [SEQUENTIAL, TUNED]).values()),
        "repeats": len(laps.machine),
        "seconds": {name: laps.seconds(name) for name in laps.timed},
        "first_run_seconds": laps.warm_up[NASFLOW].wall,
        "load": statistics.median(reading["load"] for reading in laps.machine),
    }


def _over_better(laps: Laps, name: str) -> float:
    return min(laps.speed_up(name, SEQUENTIAL), laps.speed_up(name, TUNED))


def _summary(name: str, ratios: list[float]) -> dict[str, Any]:
    below = sum(ratio < LINE for ratio in ratios)
    text = f"least {min(ratios):.3f}x, median {statistics.median(ratios):.3f}x, {below} of {len(ratios)} below {LINE}x"
    return {name: text}
