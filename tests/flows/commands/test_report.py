"""A search that is killed and resumed, looked at elsewhere: its loggers, its report, its trials in Optuna."""

import csv
import json
import os
import re
import signal
import time
from typing import Any

import optuna
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.flows.searches import PrefectServer, Searches

EPOCHS = 4
CONFIG: dict[str, Any] = {
    "space": {
        "target": "spaces.py:mixed",
        "params": {"widths": [8, 10, 12, 14, 16, 18], "kinds": ["ok", "raise"], "delay": 0.003},
    },
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": EPOCHS,
        "optimizer": {"lr": {"float": [1e-3, 1e-1], "log": True}},
    },
    "objectives": [{"metric": "val_accuracy"}, {"metric": "parameters", "direction": "minimize"}],
    "budget": {"rounds": 2, "trials_per_round": 4},
    "training_service": {"kind": "local", "slots": 2},
    "retry": {"delay_seconds": [0.1], "alone": 0},
    "loggers": ["csv", "tensorboard"],
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Searches:
    """The search, killed after its first epochs and run to its end."""
    searches = Searches(tmp_path_factory.mktemp("done"), prefect_server)
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    deadline = time.monotonic() + 200
    while sum(event["kind"] == "epoch" for event in searches.events("search")) < 3:
        assert controller.poll() is None and time.monotonic() < deadline, "the search trains nothing"
        time.sleep(0.02)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    searches.run("run", "search.yaml")
    return searches


@pytest.fixture(scope="module")
def trials(done: Searches) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = done.json("show", "search")["trials"]
    return found


def test_every_epoch_is_logged_once(done: Searches, trials: list[dict[str, Any]]) -> None:
    logs = done.folder / "nasflow-runs" / "search" / "logs"
    assert {trial["status"] for trial in trials} == {"trained", "failed"}, "the seed has some of both"
    for trial in trials:
        name = f"trial-{trial['number']:05d}"
        steps = list(range(1, trial["epochs"] + 1))
        with (logs / "csv" / name / "metrics.csv").open() as file:
            assert [int(row["step"]) for row in csv.DictReader(file)] == steps
        board = EventAccumulator(str(logs / "tensorboard" / name), {"scalars": 0}).Reload()
        assert [scalar.step for scalar in board.Scalars("val_accuracy")] == steps
        if trial["status"] == "trained":
            (accuracy,) = board.Scalars("final/val_accuracy")
            assert accuracy.value == pytest.approx(trial["metrics"]["val_accuracy"])


def test_report(done: Searches, trials: list[dict[str, Any]]) -> None:
    assert "opens in any browser" in done.run("report", "search", "--html", "report.html")
    page = (done.folder / "report.html").read_text()
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json".*?>(.*?)</script>', page)]
    names = [trace.get("name") for figure in figures for trace in figure["data"]]
    assert {"best so far", "Pareto front", "failed because of its trials, a retry"} <= set(names)
    plans = [event for event in done.events("search", jobs="r*-batch-*") if event["kind"] == "planned"]
    merged = {trial for plan in plans for unit in plan["units"] for trial in unit["members"]}
    reasons = {reason for plan in plans for reason in plan["alone"].values()}
    assert f"{len(merged)} of 8 trials merged into" in page and all(reason in page for reason in reasons)
    assert plans and ("Expected from measured kernels: " in page) == bool(merged), "what the jobs' files tell"
    rows = next(figure for figure in figures if figure["data"][0]["type"] == "bar" and "base" in figure["data"][0])
    assert rows["layout"]["yaxis"]["ticktext"] == ["cpu-0", "cpu-1"]
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="model"') == 3
    assert 'class="missing"' not in page.split("<main>")[0]


def test_report_can_not_be_written(done: Searches) -> None:
    said = done.run("report", "search", "--html", "no/such/folder/report.html", code=2)
    assert said.startswith("error: --html: no/such/folder/report.html can't be written: No such file")


def test_export_to_optuna(done: Searches, trials: list[dict[str, Any]]) -> None:
    assert "8 trials → sqlite:///optuna.db" in done.run("export", "search", "--optuna", "sqlite:///optuna.db")
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{done.folder}/optuna.db")
    assert [str(direction.name) for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["val_accuracy", "parameters"]
    for trial, copy in zip(trials, study.trials, strict=True):
        assert copy.number == trial["number"] and copy.params == trial["architecture"]
        assert copy.state.name == {"trained": "COMPLETE", "failed": "FAIL"}[trial["status"]]
        assert copy.values == (list(map(trial["metrics"].get, study.metric_names)) if trial["metrics"] else None)
        assert list(copy.intermediate_values) == list(range(1, trial["epochs"] + 1))
        assert copy.datetime_start < copy.datetime_complete and copy.user_attrs["round"] == trial["round"]
        assert ("always raises" in copy.user_attrs.get("error", "")) == (trial["status"] == "failed")
        assert copy.distributions["optimizer.lr"] == optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)
        assert copy.distributions["kind"].choices == ("ok", "raise")
    assert study.best_trials and "postgresql" not in study.user_attrs["nasflow config"]


def test_export_says_what_is_wrong(done: Searches) -> None:
    assert "say what to export" in done.run("export", "search", code=2)
    assert "not a database URL" in done.run("export", "search", "--optuna", "optuna.db", code=2)
    done.run("export", "search", "--optuna", "sqlite:///twice.db", "--out", "models", "--top", "2")
    assert len(list((done.folder / "models").iterdir())) == 2
    said = done.run("export", "search", "--optuna", "sqlite:///twice.db", code=2)
    assert "has a study 'search' already" in said and "Traceback" not in said
    said = done.run("export", "search", "--optuna", "sqlite:///no/such/folder/x.db", code=2)
    assert "can't be used: unable to open database file" in said
