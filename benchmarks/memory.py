"""What nasflow needs of memory: `python -m benchmarks.memory`.

- The controller: a process with the imports of `nasflow run`, at its peak while it resumes a finished study of
  `--trials` trials of 20 epochs.
- Warm workers: those of `--slots` CPU slots of one machine, when all are ready and none has had a job. The PSS of a
  process counts memory that it shares with others in part, so the sum is what the machine has to hold. Beside it, what
  as many workers would hold that have nothing in common.
- A job: of `--members` perceptrons (W1a), what it needs at its peak beyond its imports, and as a multiple of the
  members' parameters. Adam alone takes three times these, with its gradients.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from benchmarks.commands import ROOT
from benchmarks.merging.group import Group
from benchmarks.merging.plain import Manner, build
from benchmarks.merging.report import print_table
from benchmarks.merging.workloads import w1_mlps
from benchmarks.merging.workloads.w4_frozen_trunk import job_memory
from benchmarks.study.filling import fill, study_config
from nasflow.config.services.local import LocalServiceConfig
from nasflow.study.study import Study
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState

_MB = 1e6
_READY_WITHIN = 300.0  # seconds
CONTROLLER_LIMIT = 400.0  # MB, at 100,000 trials


def controller(trials: int, folder: Path) -> dict[str, float]:
    """Return the peak of a controller that resumes a study, in MB, and what of that is beyond its imports."""
    folder.mkdir()
    study = Study.open(study_config(folder))
    fill(study, trials)
    study.close()
    command = [sys.executable, "-m", "benchmarks.study.probe", str(folder), "random"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"trials": trials, "peak": found["peak_megabytes"], "beyond_imports": found["megabytes"]}


def workers(slots: int, root: Path) -> dict[str, float]:
    """Return the memory of the warm workers of a machine in MB: all together, and one that shares none."""
    service = LocalService(LocalServiceConfig(kind="local", slots=slots), root)
    try:
        service.prepare()
        state = LocalState(root)
        _await_ready(state, service.slots())
        with state.lock():
            found = [psutil.Process(worker.process.pid) for worker in state.workers()]
        everyone = {*found, *(process for worker in found if (process := worker.parent()) and _is_worker(process))}
        memory = {process: process.memory_full_info() for process in everyone}
    finally:
        service.cleanup()
    one = max(memory[process].rss for process in found) / _MB
    return {"slots": slots, "together": sum(each.pss for each in memory.values()) / _MB, "one_alone": one}


def job(members: int, folder: Path) -> dict[str, float]:
    """Return the peak memory of a job beyond its imports in MB, and its members' parameters."""
    folder.mkdir()
    group = w1_mlps.make_group("a", members, 2, 0)
    found = job_memory(group, folder)
    parameters = _parameter_bytes(group)
    beyond = found["peak"] - found["before"]
    return {
        "members": members,
        "beyond_imports": beyond / _MB,
        "parameters": parameters / _MB,
        "times_parameters": beyond / parameters,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 32, 128])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found: dict[str, Any] = {
            "controller": controller(options.trials, folder / "study"),
            "workers": [workers(slots, folder / f"slots-{slots}") for slots in options.slots],
            "jobs": [job(members, folder / f"members-{members}") for members in options.members],
        }
    print_table(_table(found))
    sys.stdout.write(json.dumps(found) + "\n")


def _table(found: dict[str, Any]) -> Table:
    shown = Table("what", "MB", "beside", title="memory")
    resumed = found["controller"]
    beside = f"{resumed['beyond_imports']:.0f} beyond the imports; limit {CONTROLLER_LIMIT:.0f} at 100,000 trials"
    shown.add_row(f"controller, {resumed['trials']:,} trials", f"{resumed['peak']:.0f}", beside)
    for each in found["workers"]:
        apart = each["slots"] * each["one_alone"]
        what = f"warm workers of {each['slots']} slots"
        shown.add_row(what, f"{each['together']:.0f}", f"{apart:.0f} if none were shared")
    for each in found["jobs"]:
        beside = f"{each['times_parameters']:.1f} times the parameters, {each['parameters']:.2f} MB"
        shown.add_row(f"a job of {each['members']} perceptrons", f"{each['beyond_imports']:.1f}", beside)
    return shown


def _await_ready(state: LocalState, slots: Sequence[str]) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while not all(state.ready(slot).exists() for slot in slots):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the workers are not ready within {_READY_WITHIN:.0f} s")
        time.sleep(0.1)


def _is_worker(process: psutil.Process) -> bool:
    """Whether this is the program that has forked workers, which stays."""
    return "nasflow.training_service.local.worker" in process.cmdline()


def _parameter_bytes(group: Group) -> int:
    models = [build(group.trial(member), Manner()) for member in group.members]
    return sum(tensor.numel() * tensor.element_size() for model in models for tensor in model.parameters())


if __name__ == "__main__":
    main()
