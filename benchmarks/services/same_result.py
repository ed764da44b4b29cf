"""The search of `make search` through a training service, compared with the same through `local`.

Part of `python -m benchmarks.services`. The leaderboards have to be equal to the last bit of each metric.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console

from benchmarks.commands import ROOT, ContestantError, PrefectServer, run_commands
from benchmarks.services.set_ups import SET_UPS, UnavailableError
from nasflow.study.study import Study

_WITHIN = 1800.0  # seconds for a search

Leaderboard = dict[str, dict[str, float]]


def same_result(kinds: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return, for each kind, how many trials it trained, which differ from `local`'s, and what it left running."""
    console = Console(stderr=True)
    server = PrefectServer(folder / "server")
    try:
        local = {"kind": "local", "slots": 2}
        console.log("local, which measures the costs of kernels")
        search(local, server, folder / "costs")
        console.log("local")
        expected = search(local, server, folder / "local")
        found: dict[str, Any] = {}
        for kind in kinds:
            console.log(kind)
            try:
                with SET_UPS[kind](folder / f"{kind}-servers", server) as section:
                    found[kind] = _compare(expected, search(section, server, folder / kind))
                found[kind]["left"] = _naming(folder / kind)
            except (UnavailableError, ContestantError) as error:
                found[kind] = {"error": str(error)}
            console.log(json.dumps(found[kind]))
        return found
    finally:
        server.close()


def search(section: Mapping[str, Any], server: PrefectServer, folder: Path) -> Leaderboard:
    """Run the search. Return the metrics of its trials, by their architectures.

    All searches share the measured costs of kernels, which decide what is fused, and so the last bits of a metric. A
    search that has to measure them decides on its first jobs with fewer of them than the next searches.

    Raises:
        ContestantError: the command failed, or a trial has no score.
    """
    folder.mkdir()
    values = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    store = f"sqlite:///{folder / 'nasflow.db'}"
    config = folder / "search.yaml"
    config.write_text(yaml.safe_dump({**values, "training_service": dict(section), "store": store}))
    environment = {**server.environment, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    run_commands([[sys.executable, "-m", "nasflow.flows.cli", "run", config]], folder, environment, _WITHIN)
    study = Study.load(store, values["name"])
    try:
        trials = study.trials()
    finally:
        study.close()
    if unscored := [trial for trial in trials if not trial.status.scored]:
        raise ContestantError(f"trial {unscored[0].number} is {unscored[0].status}: {unscored[0].error}")
    return {f"{trial.number} {trial.architecture.to_json()}": trial.metrics for trial in trials}


def _compare(expected: Leaderboard, found: Leaderboard) -> dict[str, Any]:
    """Return how many trials there are, how many are missing, new, or have other metrics, and the first of these."""
    different = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    return {"trials": len(found), "different": len(different), "first": sorted(different)[:1]}


def _naming(folder: Path) -> list[str]:
    """Return the command lines of running processes that name a file in this folder."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if f"{folder}/" in line]
