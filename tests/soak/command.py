"""The command line of the soak test."""

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from nasflow.study.study import Study
from tests.faults.processes import end
from tests.faults.search import NAME, HungSearch, TroubledSearch
from tests.flows.searches import PrefectProcess, PrefectServer
from tests.soak.measure import Meter, draw, growths

HERE = Path(__file__).parent
VICTIMS = ["job", "worker", "job", "zygote", "job", "worker", "job", "worker", "job", "controller"]  # in turns
LOGS = {
    "controller": ["search/controller-*.log"],
    "workers": ["search/nasflow-runs/search/local/logs/*.log"],
    "server": ["prefect/server.log"],
}
_LOOK = 5.0  # seconds between two samples
MOST = 1.15  # times what a part held after the first tenth


def config(trials: int, per_round: int, delay: float) -> dict[str, Any]:
    """A search of so many trials, which wait in each step."""
    return {
        "space": {"target": "spaces.py:waiting", "params": {"delay": delay}},
        "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Wine"}, "epochs": 2},
        "budget": {"rounds": -(-trials // per_round), "trials_per_round": per_round},
        "training_service": {"kind": "local", "slots": 2},
        "merge": {"max_members": 20, "fuse": "never"},  # fused, they would wait together
        "retry": {"delay_seconds": [0.1], "batch": 50, "alone": 5},
    }


def soak(folder: Path, trials: int, per_round: int, delay: float, every: float) -> int:
    """Run the search to its end with a kill every so many seconds; return how many figures grew."""
    home = folder / "prefect"
    home.mkdir(parents=True)
    server = PrefectProcess(home, {"PYTHONPATH": str(HERE / "at_start")})
    server.start()
    _fill_connections(server.server)
    search = TroubledSearch(folder / "search", server, {"base_dir": str(HERE), **config(trials, per_round, delay)})
    meter = Meter(search, LOGS)
    try:
        kills = _disturb(search, meter, every)
    finally:
        search.close()
        server.end()
    page = draw(meter.samples, folder)
    grown = 0
    for growth in growths(meter.samples):
        too_much = growth.ratio > MOST
        grown += too_much
        print(
            f"{growth.part:>10} {growth.figure:>8}: {growth.early:8.1f} -> {growth.late:8.1f} "
            f"({growth.ratio:.2f}){' GREW' if too_much else ''}"
        )
    with closing(Study.load(search.store, NAME)) as study:
        counts = {str(status): count for status, count in study.counts().items() if count}
    statuses = sorted(counts)
    print(f"{sum(counts.values())} trials ({', '.join(statuses)}), {kills} kills, {len(search.restarts)} restarts")
    print(f"drawn in {page}")
    return grown + (statuses != ["trained"])


def _disturb(search: TroubledSearch, meter: Meter, every: float) -> int:
    """Tend the search to its end; kill one of its processes every so many seconds. Return the number of kills."""
    rng, kills = random.Random(0), 0
    next_kill = time.monotonic() + every
    while not search.ended:
        search.tend_for(_LOOK)
        meter.look()
        if time.monotonic() >= next_kill and (victims := _living(search, VICTIMS[kills % len(VICTIMS)])):
            end(rng.choice(victims))
            kills += 1
            next_kill = time.monotonic() + every
            print(f"{meter.samples[-1].seconds / 60:.1f} min: {search.trained()} epochs, {kills} kills", flush=True)
    return kills


def _fill_connections(server: PrefectServer) -> None:
    """Ask the server by many at once: it keeps the connections to its database that it opens then, one thread each.

    Otherwise it opens them whenever two requests happen to meet.
    """
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: server.post("/flow_runs/filter", {}), range(64)))


def _living(search: TroubledSearch, kind: str) -> list[psutil.Process]:
    """Return the processes of a kind, or jobs where there are none: a zygote ends with its workers."""
    return search.living(kind) or search.living("job")


def main() -> int:
    """Read the command line and run; exit code 1 if something grew or was lost."""
    parser = argparse.ArgumentParser(description=sys.modules["tests.soak"].__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--per-round", type=int, default=40)
    parser.add_argument("--delay", type=float, default=0.24, help="seconds that a trial waits in each of its 12 steps")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--folder", type=Path, help="for all files; default: a new temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="nasflow-soak-"))
    try:
        return min(1, soak(folder, options.trials, options.per_round, options.delay, options.every))
    except HungSearch as error:
        print(f"the search hangs: {error}")
        return 1
