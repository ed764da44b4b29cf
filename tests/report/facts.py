"""Facts of studies for the HTML report: a small one full of hostile words, an empty one, a large one."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from torch import nn

from benchmarks.study.filling import architecture, epoch_metrics, fails
from nasflow.config.search import SearchConfig, parse_config
from nasflow.report.html.data import JobRun, RoundFact, RunEnd, StudyFacts
from nasflow.report.html.plot import thinned
from nasflow.report.model.tree import model_outline
from nasflow.space.architecture import Architecture
from nasflow.trial import Trial, TrialStatus

EVIL = "</script><img src=x onerror=document.title='broken'>"
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOTH = [{"metric": "val_accuracy"}, {"metric": "parameters", "direction": "minimize"}]


def config(**changes: Any) -> SearchConfig:
    values = {
        "name": "hostile",
        "space": {"target": "nasflow.space.ready:mlp", "params": {"api_key": "in-the-clear", "note": EVIL}},
        "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 6},
    }
    return parse_config({**values, **changes})


def hostile(trials: int = 60, **changes: Any) -> StudyFacts:
    """Trials of conditional choices, whose labels, options, errors and slots are what no page should run."""
    made = [_hostile_trial(number) for number in range(trials)]
    best = sorted((t for t in made if t.status.scored), key=lambda trial: -trial.metrics["val_accuracy"])
    return StudyFacts(
        config=config(objectives=BOTH, **changes),
        created_at=BEGAN,
        made_at=BEGAN + timedelta(hours=1),
        rounds=[RoundFact(number, "completed", 90.5, EVIL) for number in range(3)],
        trials=made,
        best=best[:20],
        curves={t.number: _curve(t) for t in [*best[:12], *(t for t in made if not t.status.scored)]},
        models={best[0].number: model_outline(nn.Sequential(nn.Conv2d(1, 8, 3), _hostile_module(), nn.Linear(8, 10)))},
        runs=list(_runs()),
        plans={f"batch {EVIL}": [_plan()]},
        missing=[f"The space can't be used here ({EVIL})."],
    )


def empty(**changes: Any) -> StudyFacts:
    """A study that was begun just now."""
    return StudyFacts(config=config(**changes), created_at=BEGAN, made_at=BEGAN)


def large(trials: int) -> StudyFacts:
    """A study like those of the benchmarks."""
    made = [_large_trial(number) for number in range(trials)]
    best = sorted((t for t in made if t.status.scored), key=lambda trial: -trial.metrics["val_accuracy"])[:20]
    shown = [*best[:10], *thinned(made, 200)]
    curves = {t.number: list(enumerate(epoch_metrics(t.number)[: t.epochs], 1)) for t in shown}
    runs = [
        _run(f"r{place:03d}", BEGAN + timedelta(minutes=place), RunEnd.SUCCEEDED, f"gpu-{place % 4}")
        for place in range(trials // 25)
    ]
    facts = {"made_at": BEGAN + timedelta(days=2), "trials": made, "best": best, "curves": curves, "runs": runs}
    return StudyFacts(config=config(name="large"), created_at=BEGAN, **facts)


def _hostile_trial(number: int) -> Trial:
    chosen: dict[str, Any] = {
        f"op {EVIL}": ["conv", EVIL, "skip"][number % 3],
        "depth": 1 + number % 2,
        "lr": 10 ** -(1 + 3 * math.modf(number * 0.37)[0]),
        "used": [["a"], ["a", "b"], []][number % 3],
    }
    if chosen["depth"] == 2:
        chosen["width1"] = [8, 16, 32][number % 3]
    if number % 10 == 9:
        return _trial(number, chosen, TrialStatus.FAILED, {}, error=f"ValueError: {EVIL}\nmore")
    accuracy = 0.5 + 0.3 * math.modf(number * 0.618)[0]
    metrics = {"val_accuracy": accuracy, "parameters": 1000.0 + 37 * (number % 13)}
    return _trial(number, chosen, TrialStatus.TRAINED, metrics, replayed_from=0 if number == 58 else None)


def _hostile_module() -> nn.Module:
    """A module whose class and description are hostile."""
    return type(EVIL, (nn.Module,), {"extra_repr": lambda _: EVIL})()


def _large_trial(number: int) -> Trial:
    if fails(number):
        return _trial(number, architecture(number), TrialStatus.FAILED, {}, error="the loss is not finite")
    metrics = epoch_metrics(number)[-1] | {"parameters": 100.0 + number % 77}
    return _trial(number, architecture(number), TrialStatus.TRAINED, metrics)


def _trial(number: int, chosen: Any, status: TrialStatus, metrics: dict[str, float], **more: Any) -> Trial:
    return Trial(
        number=number,
        round=number // 20,
        architecture=Architecture(chosen),
        seed=1,
        status=status,
        metrics=metrics,
        epochs=6,
        **more,
    )


def _curve(trial: Trial) -> list[tuple[int, dict[str, float | None]]]:
    top = trial.metrics.get("val_accuracy", 0.3)
    return [(epoch, {"val_accuracy": None if epoch == 3 else top * epoch / 6}) for epoch in range(1, 7)]


def _run(job: str, began: datetime, end: RunEnd, slot: str | None, **more: Any) -> JobRun:
    ended = None if end is RunEnd.RUNNING else began + timedelta(seconds=50)
    return JobRun(job, (1, 2, 3), slot, began - timedelta(seconds=5), began, ended, end, **more)


def _runs() -> list[JobRun]:
    return [
        _run("r000-batch-000-0", BEGAN, RunEnd.LOST, "host-a", error=f"lost {EVIL}"),
        _run("r000-batch-000-1", BEGAN + timedelta(minutes=1), RunEnd.SUCCEEDED, "host-b", retry=True),
        _run("r000-batch-001-0", BEGAN + timedelta(seconds=20), RunEnd.FAILED, "host-a", error=EVIL),
        _run("r000-alone-000-0", BEGAN + timedelta(minutes=2), RunEnd.CANCELLED, EVIL, retry=True),
        _run("r001-batch-000-0", BEGAN + timedelta(minutes=5), RunEnd.RUNNING, None),
    ]


def _plan() -> dict[str, Any]:
    unit = {"members": [0, 1, 2], "operations": 12, "fused": 9, "kernels": {"batched": 4}, "gathers": 1}
    measured = {**unit, "seconds": 0.002, "seconds_alone": 0.005}
    unmeasured = {**unit, "members": [5, 6], "seconds": None, "seconds_alone": None}
    return {"units": [measured, unmeasured], "alone": {"7": f"it can't be traced: {EVIL}", "8": "no other"}}
