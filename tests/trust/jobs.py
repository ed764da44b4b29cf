"""Whole jobs: members that fail, are pruned, wait for a place, or go on from their checkpoints."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasflow.checkpoint.packing import unpack
from nasflow.config.search import CheckpointConfig, HalvingPrunerConfig, MergeConfig, Objective, Target
from nasflow.job.events import Epoch, Event, Planned
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.training.training_job import TrainingJob
from tests.training.jobs import evictions, outcome, train
from tests.trust.case import EXACT, HERE, ROUNDING, Case, Verdict, as_drawn, evaluator_config
from tests.trust.model import Program
from tests.trust.same import differences


class Interrupted(Exception):
    """Ends a job from within."""


def run_job(case: Case) -> Verdict:
    """Train the members in a job where they are fused, and in one where they are not."""
    if case.job == "eviction":
        case = replace(case, programs=(_failing(case.programs[0], case.seed), *case.programs[1:]))
    with tempfile.TemporaryDirectory(prefix="nasflow-trust-") as folder:
        together, alone = Path(folder) / "together", Path(folder) / "alone"
        with as_drawn(case):
            told = _train(_job(case, case.fuse), together, case)
        expected = _train(_job(case, "never"), alone, case)
        verdict = Verdict(failed_alone=set(evictions(expected)))
        verdict.paths.met = {"job", case.job, *_kernels(told)}
        if evictions(told).keys() != evictions(expected).keys():
            verdict.differences = [f"evicted together: {evictions(told)}, alone: {evictions(expected)}"]
        for trial in range(len(case.programs)):
            if trial not in evictions(told):
                one, other = _outcome(told, together, trial), _outcome(expected, alone, trial)
                tolerance = EXACT if case.config(0)["optimizer"]["name"] == "sgd" else ROUNDING  # others amplify it
                verdict.differences += differences(one, other, tolerance, f"member {trial}")
    return verdict


def _failing(program: Program, seed: int) -> Program:
    """The program with a layer that raises, or gives NaN, after some steps."""
    fault = f"self.fault = Fails({seed % 5 + 1}, {bool(seed % 2)})"
    line = f"faulty = self.fault({program.output})"
    return Program((*program.layers, fault), (*program.steps, line), "faulty")


def _job(case: Case, fuse: Any) -> JobSpec:
    config = evaluator_config({**case.config(0), "data": _data(case), "epochs": 3})
    pruned = {"pruner": HalvingPrunerConfig(reduction_factor=2), "places": 2} if case.job == "pruning" else {}
    return JobSpec(
        job_id="job",
        study="study",
        space=Target(target="space.py:build", params={"sources": [p.source for p in case.programs]}),
        evaluator=config,
        data=config.data,
        checkpoint=CheckpointConfig(),
        data_seed=case.seed,
        base_dir=HERE,
        merge=MergeConfig(fuse=fuse),
        members=[
            MemberSpec(trial=trial, architecture=Architecture({"member": trial}), seed=case.seed + trial)
            for trial in range(len(case.programs))
        ],
        objectives=[Objective(metric="val_loss", direction="minimize")],
        **pruned,
    )


def _data(case: Case) -> dict[str, Any]:
    return {"target": "space.py:data", "params": {"inputs": case.inputs}}


def _train(spec: JobSpec, root: Path, case: Case) -> list[Event]:
    """Return the job's events; it is started twice if it is to be resumed."""
    if case.job == "resume":

        def tell(event: Event) -> None:
            if isinstance(event, Epoch) and event.epoch == 2:
                raise Interrupted

        try:
            TrainingJob(spec, root, tell).run()
        except Interrupted:
            return train(spec, root)
    return train(spec, root)


def _kernels(events: list[Event]) -> set[str]:
    return {"unit" for event in events if isinstance(event, Planned) for unit in event.units if unit.members}


def _outcome(events: list[Event], root: Path, trial: int) -> dict[str, Any]:
    found = vars(outcome(events, root, trial))
    epochs = [{name: math.nan if value is None else value for name, value in of.items()} for of in found["epochs"]]
    return {
        "epochs": epochs,
        "final": found["final"],
        "stopped_early": found["stopped_early"],
        "state": unpack(found["values"], found["tensors"]),
    }
