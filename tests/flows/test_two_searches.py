"""Two searches, each with its own controller and jobs, write to one database at the same time."""

import re
from collections import Counter
from typing import Any

import pytest

from nasflow.study.study import Study
from tests.flows.searches import Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 10, 12, 14, 16, 18], "delay": 0.002}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 4},
    "budget": {"rounds": 2, "trials_per_round": 3},
    "training_service": {"kind": "local", "slots": 1},
}
TRIALS, EPOCHS = 6, 4


@pytest.mark.long
def test_two_searches_share_a_database(searches: Searches, store_url: str) -> None:
    names = ["first", "second"]
    for seed, name in enumerate(names):
        searches.write(name, **CONFIG, store=store_url, seed=seed)
    running = [searches.start("run", f"{name}.yaml") for name in names]
    for name, process in zip(names, running, strict=True):
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert not re.search("locked|deadlock", output)
        told = Counter((e["trial"], e["epoch"]) for e in searches.events(name) if e["kind"] == "epoch")
        everything = {(trial, epoch) for trial in range(TRIALS) for epoch in range(1, EPOCHS + 1)}
        assert told == Counter(everything)
        study = Study.load(store_url, name)
        assert {trial.number: str(trial.status) for trial in study.trials()} == dict.fromkeys(range(TRIALS), "trained")
        rows = [(row.trial, row.epoch) for records in study.epochs(range(TRIALS)).values() for row in records]
        assert Counter(rows) == Counter(everything)
        assert study.controller() is None
        study.close()
