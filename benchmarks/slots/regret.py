"""The regret of strategies on a table of results, with and without rounds ahead.

`python -m benchmarks.slots.regret STORE` makes the table from the studies of the configs which
`python -m benchmarks.slots.regret --configs FOLDER` writes and `nasflow run` trains.
"""

import argparse
import json
import math
import statistics
from collections import deque
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nasflow.config.search import Objective, SearchConfig, parse_config
from nasflow.evaluator.candidate import candidate_space
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.strategy.make import make_strategy
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus

TABLE = Path(__file__).with_name("table.json")
SEEDS = (0, 1, 2)
EPOCHS = 4
ROUNDS, TRIALS = 8, 8
_METRIC = "val_accuracy"


def config(seed: int) -> dict[str, Any]:
    """Return the search of all architectures with one seed."""
    return {
        "name": f"cells-{seed}",
        "space": {
            "target": "nasflow.space.ready:cell_cnn",
            "params": {"widths": [6, 12], "max_cells": 1, "positions": 3},
        },
        "evaluator": {
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:Digits", "params": {"batch_size": 64}},
            "epochs": EPOCHS,
            "optimizer": {"name": "adamw", "lr": 0.003},
        },
        "strategy": {"kind": "grid"},
        "budget": {"rounds": 3, "trials_per_round": 144},
        "merge": {"max_members": 24},
        "training_service": {"kind": "local", "slots": 1},
        "seed": seed,
    }


def regrets(strategy: str, ahead: int, searches: int) -> tuple[float, float]:
    """Return the mean regret of so many searches, and its standard error.

    A search sees the accuracies of one seed after the last epoch; its regret is what its best trial lacks to the best
    of the table with this seed.
    """
    found = [_regret(strategy, ahead, number) for number in range(searches)]
    return statistics.mean(found), statistics.stdev(found) / math.sqrt(searches)


def _regret(kind: str, ahead: int, number: int) -> float:
    parsed, table = _config(kind), _table()
    space = candidate_space(parsed.space, parsed.evaluator, parsed.base_dir)
    objectives = [Objective(metric=_METRIC, direction="maximize")]
    strategy = make_strategy(parsed.strategy, space, objectives, derive_seed("search", number), parsed.base_dir)
    seen, waiting = SEEDS[number % len(SEEDS)], deque[list[Trial]]()
    best = 0.0
    for round in range(ROUNDS):
        if len(waiting) > ahead:
            strategy.tell(waiting.popleft())
        trials = []
        for place, architecture in enumerate(strategy.ask(TRIALS)):
            value = table[architecture.to_json()][seen][-1]
            best = max(best, value)
            trials.append(_trial(round * TRIALS + place, round, architecture, value))
        waiting.append(trials)
    return max(curves[seen][-1] for curves in table.values()) - best


def _trial(number: int, round: int, architecture: Architecture, value: float) -> Trial:
    scored = {"status": TrialStatus.TRAINED, "metrics": {_METRIC: value}, "epochs": EPOCHS, "error": None}
    return Trial(number=number, round=round, architecture=architecture, seed=0, **scored)


@cache
def _config(kind: str) -> SearchConfig:
    strategy = {"kind": kind} | ({"population": 16, "tournament": 4} if kind == "evolution" else {})
    return parse_config(config(0) | {"strategy": strategy})


@cache
def _table() -> dict[str, list[list[float]]]:
    """Return the accuracy of each architecture by seed and epoch."""
    known: dict[str, list[list[float]]] = json.loads(TABLE.read_text())
    return known


def make_table(store: str) -> None:
    """Write the table from the studies of all seeds."""
    table: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        with closing(Study.load(store, f"cells-{seed}")) as study:
            trials = study.trials()
            epochs = study.epochs([trial.number for trial in trials])
        for trial in trials:
            curve = [round(float(record.metrics[_METRIC] or 0), 4) for record in epochs[trial.number]]
            table.setdefault(trial.architecture.to_json(), []).append(curve)
    if wrong := [key for key, curves in table.items() if [len(curve) for curve in curves] != [EPOCHS] * len(SEEDS)]:
        raise RuntimeError(f"not all epochs of all seeds are there, as of {wrong[0]}")
    rows = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(curves, separators=(',', ':'))}" for key, curves in table.items()
    )
    TABLE.write_text(f"{{\n{rows}\n}}\n")


def main() -> None:
    """Write the configs, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="URL of the store with the studies")
    parser.add_argument("--configs", type=Path, help="folder for the configs of the searches that `nasflow run` runs")
    options = parser.parse_args()
    if options.configs:
        for seed in SEEDS:
            (options.configs / f"cells-{seed}.yaml").write_text(yaml.safe_dump(config(seed)))
    if options.store:
        make_table(options.store)


if __name__ == "__main__":
    main()
