"""Start a search on the study in a folder, in a separate process: `python -m benchmarks.study.probe`.

Prints one line of JSON: seconds (and CPU seconds) until the study is open and until the search has found its next step,
and the peak memory, with and without that of the imports.
"""

import json
import random
import sys
import time
from pathlib import Path

import nasflow.flows.search_flow  # noqa: F401 - part of what a controller has in memory
from benchmarks.study.filling import study_config
from nasflow.evaluator.candidate import candidate_space
from nasflow.flows.budget import rounds_left
from nasflow.flows.session.session import SearchSession
from nasflow.strategy.make import make_strategy


def main(folder: Path, strategy_kind: str) -> dict[str, float]:
    """Measure and return the figures."""
    config = study_config(folder, strategy_kind)
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    space.sample(random.Random(0))  # imports what a model build needs
    strategy = make_strategy(config.strategy, space, config.objectives, config.seed, config.base_dir)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux)
    began, began_cpu = time.perf_counter(), time.process_time()
    session = SearchSession(config, space, strategy, [])
    opened, opened_cpu = time.perf_counter(), time.process_time()
    number = next(rounds_left(session.study))
    session.study.begin_round(number)
    session.proposals.ask(number, 0)  # takes the recorded rounds
    present = session.study.trials(round=number), session.study.batches(number)
    ended, ended_cpu = time.perf_counter(), time.process_time()
    peak = _memory("VmHWM")
    if any(present) or not session.proposals.ask(number, 1):
        raise RuntimeError("the search would not go on with a new round")
    session.study.close()
    return {
        "open": opened - began,
        "open_cpu": opened_cpu - began_cpu,
        "resume": ended - began,
        "resume_cpu": ended_cpu - began_cpu,
        "megabytes": (peak - before) / 1e6,
        "peak_megabytes": peak / 1e6,
    }


def _memory(name: str) -> int:
    """Return the bytes of this process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])) + "\n")
