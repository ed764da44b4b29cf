"""The contest of W1 and W2, which the other workloads vary: contestants (a) to (d) on one group."""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.merging.contestants import Contestant, Nasflow, Processes, Sequential
from benchmarks.merging.floor import Work, count_work, product_speed
from benchmarks.merging.group import NEVER, Group
from benchmarks.merging.plain import Manner, seed_epoch
from benchmarks.merging.report import Report
from benchmarks.merging.timing import Clock, Laps, interleave

PROCESS = "(a) a process per trial"
SEQUENTIAL = "(b) sequential"
TUNED = "(c) tuned sequential"
NASFLOW = "(d) nasflow"
STEPS = "(d) nasflow, no checkpoints"

CLOCKS: tuple[Clock, ...] = ("wall", "cpu")
CHOICES = {"process": PROCESS, "sequential": SEQUENTIAL, "tuned": TUNED, "nasflow": NASFLOW, "steps": STEPS}


def add_contest_arguments(parser: argparse.ArgumentParser, members: int, epochs: int, sequential: int) -> None:
    """Add the arguments of every contest, with a workload's own defaults."""
    parser.add_argument("--members", type=int, default=members, help="trials that are trained")
    parser.add_argument("--epochs", type=int, default=epochs, help="of each trial")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each contestant, one warm-up apart")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing of the trials")
    parser.add_argument(
        "--contestants", nargs="+", choices=CHOICES, default=list(CHOICES), metavar="NAME", help=", ".join(CHOICES)
    )
    parser.add_argument(
        "--process-sample", type=int, default=4, help="trials that (a) trains, from cheap to costly, scaled to all"
    )
    parser.add_argument(
        "--sequential-sample", type=int, default=sequential, help="trials that (b) and (c) train, scaled; 0: all"
    )


def enter(group: Group, work: Work, arguments: argparse.Namespace, folder: Path) -> list[Contestant]:
    """Return the chosen contestants."""
    few = group.sample(arguments.process_sample, work.flops)
    some = group.sample(arguments.sequential_sample or len(group), work.flops)
    makers = {
        "process": lambda: Processes(PROCESS, few, folder, members=len(group)),
        "sequential": lambda: Sequential(SEQUENTIAL, some, len(group)),
        "tuned": lambda: Sequential(TUNED, some, len(group), Manner(tuned=True)),
        "nasflow": lambda: Nasflow(NASFLOW, group, folder),
        "steps": lambda: Nasflow(STEPS, group, folder, NEVER),
    }
    return [makers[name]() for name in CHOICES if name in arguments.contestants]


def gauge() -> dict[str, float]:
    """Measure the machine's state between two repeats."""
    return {"product_gflops": product_speed() / 1e9}


def contest(title: str, group: Group, arguments: argparse.Namespace, folder: Path) -> Report:
    """Measure the chosen contestants. The floor is the group's arithmetic at the best measured speed of a product."""
    work = count_work(group)
    laps = interleave(enter(group, work, arguments, folder), arguments.repeats, gauge)
    speed = 1e9 * max(reading["product_gflops"] for reading in laps.machine)
    floor = work.total_flops / speed
    arithmetic = f"{work.total_flops / work.model_steps / 1e6:.3f} MFLOP at {speed / 1e9:.0f} GFLOPS"
    facts: dict[str, object] = {
        "sampled": sampled(arguments, len(group)),
        "floor": f"{1e6 * floor / work.model_steps:.1f} us a model-step: {arithmetic} (sgemm-1024, best of this run)",
    }
    baselines = [name for name in (PROCESS, SEQUENTIAL, TUNED) if name in laps.timed]
    if SEQUENTIAL in laps.timed:
        facts["floor_over_sequential"] = laps.seconds(SEQUENTIAL) / floor
        facts["data_wait_share_of_sequential"] = feeding_seconds(group) * len(group) / laps.seconds(SEQUENTIAL)
        facts |= accuracy_differences(laps)
        facts |= step_speed_ups(laps, baselines)
    facts["load"] = machine_load(laps)
    return Report(title, laps, work.model_steps, floor, baselines, facts)


def sampled(arguments: argparse.Namespace, members: int) -> str:
    """Return a text that says how many members each contestant trained."""
    few, some = arguments.process_sample, arguments.sequential_sample or members
    return f"(a) trained {min(few, members)}, (b) and (c) {min(some, members)}, (d) {members} of {members} members"


def feeding_seconds(group: Group) -> float:
    """Return the least seconds that loading one member's batches of all epochs takes."""
    data = group.load()
    least = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        seed_epoch(0)
        for loader in (data.train, data.validation):
            for _ in loader or ():
                pass
        least = min(least, time.perf_counter() - began)
    return least * group.epochs


def accuracy_differences(laps: Laps) -> dict[str, str]:
    """Return how far each contestant's accuracies are from (b)'s, for the trials that both trained."""
    reference = laps.timed[SEQUENTIAL][0].outcome.accuracies
    found = {}
    for name, timed in laps.timed.items():
        own = timed[0].outcome.accuracies
        common = [trial for trial in own if trial in reference]
        if name != SEQUENTIAL and common:
            gaps = [own[trial] - reference[trial] for trial in common]
            text = f"mean {statistics.fmean(gaps):+.4f}, largest {max(map(abs, gaps)):.4f}, of {len(gaps)} trials"
            found[f"accuracy of {name} against (b)"] = text
    return found


def step_speed_ups(laps: Laps, baselines: Iterable[str]) -> dict[str, float]:
    """Return how much faster nasflow's training and validation steps alone are than a whole baseline."""
    if STEPS not in laps.timed:
        return {}
    found = {}
    for baseline in baselines:
        pairs = zip(laps.timed[STEPS], laps.timed[baseline], strict=True)
        ratios = [other.wall / own.outcome.figures["step_seconds"] for own, other in pairs]
        found[f"steps of (d) alone over {baseline}"] = statistics.median(ratios)
    return found


def sharing_floors(laps: Laps, shared: str, members: int, clock: Clock) -> list[float]:
    """Return (b)'s seconds in each repeat if the work of the contestant `shared` were done once for all members."""
    pairs = zip(laps.timed[SEQUENTIAL], laps.timed[shared], strict=True)
    return [whole.seconds(clock) - (members - 1) * part.seconds(clock) for whole, part in pairs]


def sharing_facts(laps: Laps, shared: str, members: int) -> dict[str, float]:
    """Return how much the floor is below (b), and the share of its speed that nasflow reaches, by both clocks."""
    facts = {}
    for clock in CLOCKS:
        floors = sharing_floors(laps, shared, members, clock)
        over = (lap.seconds(clock) / floor for lap, floor in zip(laps.timed[SEQUENTIAL], floors, strict=True))
        facts[f"floor over (b), {clock}"] = statistics.median(over)
        for name in (NASFLOW, STEPS):
            shares = (floor / lap.seconds(clock) for lap, floor in zip(laps.timed[name], floors, strict=True))
            facts[f"share of the floor of {name}, {clock}"] = statistics.median(shares)
    return facts


def machine_load(laps: Laps) -> str:
    """Return a text about the machine's load during the benchmark, which is included."""
    load = statistics.median(reading["load"] for reading in laps.machine)
    busy = statistics.median(reading["busy"] for reading in laps.machine)
    advice = "; trust the CPU columns more" if load > 1.5 else ""
    return f"{load:.2f} processes wanted a core (1-minute mean), {100 * busy:.0f} % of all cores busy{advice}"
