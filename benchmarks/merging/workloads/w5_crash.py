"""W5: a member that ends the process it trains in, under `nasflow run` with the local service."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.merging.contestants import accuracies_of, run_job
from benchmarks.merging.group import ROOT, Group
from benchmarks.merging.workloads.w5_outcome import Ran, changed, guilty, summary, with_fault
from nasflow.job.events import parse_event
from nasflow.job.spec import JobSpec

STUDY = "crash"
_PREFECT = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}


def run_crash(group: Group, folder: Path) -> dict[str, Any]:
    """Search exactly the group's members, one of which crashes. Compare with the same job without the crash."""
    _search(with_fault(group, "exit"), folder)
    root = folder / "runs" / STUDY
    ran = [_ran(path) for path in sorted((root / "jobs").iterdir())]
    first = max((job.spec for job in ran), key=lambda spec: len(spec.members))
    members = [changed(member, fault="idle") if member.trial == guilty(group) else member for member in first.members]
    healthy = first.model_copy(update={"members": members})
    clean = folder / "crash-clean"
    accuracies_of(run_job(healthy, clean))
    if not any(job.crashed for job in ran):
        raise RuntimeError(f"no job of {root} crashed; trial {guilty(group)} should have ended its process")
    return summary("exit", group, ran, clean, root)


def _search(group: Group, folder: Path) -> None:
    architectures = [dict(member.architecture) for member in group.members]
    config = {
        "name": STUDY,
        "base_dir": str(ROOT),
        "work_dir": str(folder / "runs"),
        "store": f"sqlite:///{folder}/study.db",
        "space": group.space.model_dump(),
        "evaluator": group.evaluator.model_dump(mode="json"),
        "strategy": {
            "kind": "custom",
            "target": "benchmarks.merging.workloads.listed:Listed",
            "params": {"architectures": architectures},
        },
        "budget": {"rounds": 1, "trials_per_round": len(group)},
        "merge": {"max_members": len(group)},
        "retry": {"delay_seconds": [0.1]},
        "training_service": {"kind": "local", "slots": 1},
        "seed": group.data_seed,
    }
    path = folder / "crash.yaml"
    path.write_text(yaml.safe_dump(config))
    environment = os.environ | _PREFECT | {"PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, "-m", "nasflow.flows.cli", "run", str(path)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the search ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _ran(job: Path) -> Ran:
    lines = (job / "events.jsonl").read_text().splitlines()
    return Ran(JobSpec.model_validate_json((job / "job.json").read_text()), [parse_event(line) for line in lines])
