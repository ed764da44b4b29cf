"""Dead searches are found by facts and resumed; those that are not dead are left alone; Prefect's own retry resumes."""

import signal
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import parse_config
from nasflow.flows.budget import is_finished, rounds_left, unfinished_text
from nasflow.flows.recovery import resume
from nasflow.flows.recovery.judge import Facts, Run, Standing, judge
from nasflow.space.architecture import Architecture
from nasflow.study.lease import Controller
from nasflow.study.records import AttemptKind, AttemptState, FinalRecord, RoundState
from nasflow.study.study import Study
from tests.flows.forked_commands import run_forked
from tests.flows.searches import HERE, Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 10, 12, 14, 16, 18, 20, 22], "delay": 0.003}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 4},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 3, "trials_per_round": 2},
    "training_service": {"kind": "local", "slots": 1},
}

# --- the decision ------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALIVE = Controller(pid=7, host="here", since=NOW, seconds=50, dead=False)
DEAD = Controller(pid=7, host="here", since=NOW, seconds=50, dead=True)
UNHEARD = Controller(pid=7, host="elsewhere", since=NOW, seconds=-90, dead=False)


def run(type: str, minutes: float = 60, due: datetime | None = None, deployed: bool = False) -> Run:
    return Run(type, type.capitalize(), NOW - timedelta(minutes=minutes), due=due, deployed=deployed)


@pytest.mark.parametrize(
    ("facts", "standing", "words"),
    [
        (Facts(finished=True, deserter=DEAD), Standing.WELL, "finished"),
        (Facts(finished=False, holder=ALIVE, run=run("CRASHED")), Standing.WELL, "runs (process 7 on here"),
        (Facts(finished=False, deserter=DEAD), Standing.DEAD, "its controller died (process 7"),
        (Facts(finished=False, deserter=UNHEARD), Standing.DEAD, "not renewed its lease, which ended 90 s ago"),
        (Facts(finished=False, deserter=DEAD, run=run("RUNNING")), Standing.DEAD, "flow run is Running, but no one"),
        (Facts(finished=False, deserter=DEAD, run=run("RUNNING", 0.5)), Standing.WELL, "is Running since 30 s"),
        (Facts(finished=False, run=run("RUNNING")), Standing.DEAD, "flow run is Running, but no one runs it"),
        (Facts(finished=False, run=run("PENDING", 0.5)), Standing.WELL, "is Pending since 30 s"),
        (Facts(finished=False, run=run("PENDING", 20)), Standing.DEAD, "its flow run is Pending, but no one runs it"),
        (Facts(finished=False, run=run("PENDING", 20, deployed=True)), Standing.WELL, "is Pending since 1200 s"),
        (Facts(finished=False, run=run("PENDING", 40, deployed=True)), Standing.DEAD, "its flow run is Pending, but"),
        (Facts(finished=False, run=run("RUNNING", 20, deployed=True)), Standing.DEAD, "its flow run is Running, but"),
        (Facts(finished=False, run=run("CRASHED")), Standing.DEAD, "its flow run is Crashed"),
        (Facts(finished=False, deserter=DEAD, run=run("CRASHED", 0)), Standing.DEAD, "its flow run is Crashed"),
        (
            Facts(finished=False, deserter=DEAD, run=run("SCHEDULED", due=NOW)),
            Standing.WELL,
            "has its flow run Scheduled, due 2026-01-01 12:00:00 UTC",
        ),
        (Facts(finished=False, run=run("FAILED")), Standing.LEFT, "its flow run failed"),
        (Facts(finished=False, run=run("CANCELLED")), Standing.LEFT, "its flow run was cancelled"),
        (Facts(finished=False, deserter=DEAD, run=run("CANCELLING")), Standing.LEFT, "is being cancelled"),
        (Facts(finished=False), Standing.LEFT, "its last controller ended in good order"),
        (Facts(finished=False, run=run("COMPLETED")), Standing.LEFT, "its last controller ended in good order"),
        (Facts(finished=False, deserter=DEAD, folder=Path("gone")), Standing.LEFT, "does not have its folder gone"),
    ],
)
def test_who_is_dead(facts, standing, words):
    found, why = judge(facts, NOW)
    assert found is standing
    assert words in why


def test_what_is_left_to_run(tmp_path):
    store = f"sqlite:///{tmp_path / 'nasflow.db'}"
    config = parse_config({**CONFIG, "name": "record", "store": store, "work_dir": tmp_path, "base_dir": HERE})
    with closing(Study.open(config)) as study:
        assert list(rounds_left(study)) == [0, 1, 2]
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"kind": "ok", "width": 8})])
        study.fail_trial(0, "it raises")
        study.end_round(0, RoundState.FAILED)
        assert list(rounds_left(study)) == [1, 2]
        study.reset_failed()  # and the retry of the failed is killed
        assert list(rounds_left(study)) == [0, 1, 2]
        study.fail_trial(0, "it raises still")
        study.begin_round(1)
        study.end_round(1, RoundState.COMPLETED)
        assert is_finished(study), "the second round found nothing more to try"


def test_once_the_hours_are_over_an_open_round_is_left_only_to_be_finished(tmp_path):
    store = f"sqlite:///{tmp_path / 'nasflow.db'}"
    values = {**CONFIG, "name": "late", "store": store, "work_dir": tmp_path, "base_dir": HERE}
    for on_timeout, left in (("finish", [0]), ("stop", [])):
        config = parse_config({**values, "budget": {"rounds": 2, "hours": 1e-9, "on_timeout": on_timeout}})
        with closing(Study.open(config)) as study:
            study.begin_round(0)
            if not study.trials():
                study.submit_trials(0, [Architecture({"kind": "ok", "width": 8})])
            time.sleep(0.01)
            study.end_round(0, RoundState.COMPLETED)
            assert list(rounds_left(study)) == left
            assert unfinished_text(study) == "; budget.hours is over: a larger one goes on with 1 unfinished trials"


def test_without_hours_a_larger_budget_goes_on(tmp_path):
    store = f"sqlite:///{tmp_path / 'nasflow.db'}"
    config = parse_config({**CONFIG, "name": "fewer", "store": store, "work_dir": tmp_path, "base_dir": HERE})
    with closing(Study.open(config)) as study:
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"kind": "ok", "width": 8})])
        assert unfinished_text(study) == "; a larger budget goes on with 1 unfinished trials"


def test_a_search_is_finished_once_its_best_trial_was_tested_or_could_not_be(tmp_path):
    store = f"sqlite:///{tmp_path / 'nasflow.db'}"
    values = {**CONFIG, "name": "tested", "store": store, "work_dir": tmp_path, "base_dir": HERE}
    values["evaluator"] = {**CONFIG["evaluator"], "test_data": {"target": "spaces.py:unseen"}}
    with closing(Study.open(parse_config({**values, "budget": {"rounds": 1}}))) as study:
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"kind": "ok", "width": 8})])
        attempt = study.new_attempt(0)
        study.start_attempt(attempt.id, "job")
        logged = {"val_accuracy": 0.5, "test_own": 1.0}
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, logged, 4)])
        study.end_round(0, RoundState.COMPLETED)
        assert not is_finished(study), "what a trial logs is no test"
        for number, finals in enumerate([[], [FinalRecord(0, {"test_accuracy": 0.4}, 4)]]):
            attempt = study.new_attempt(0, AttemptKind.TEST)
            study.start_attempt(attempt.id, f"test-{number}")
            assert not is_finished(study), "its controller may be killed now"
            state = AttemptState.SUCCEEDED if finals else AttemptState.FAILED
            study.record_outcome(attempt.id, state, finals, error=None if finals else "broken data")
            assert is_finished(study)


def test_a_study_that_is_removed_meanwhile_stops_no_recovery(tmp_path, monkeypatch):
    store = f"sqlite:///{tmp_path / 'nasflow.db'}"
    Study.open(
        parse_config({**CONFIG, "name": "there", "store": store, "work_dir": tmp_path, "base_dir": HERE})
    ).close()
    monkeypatch.setattr(resume, "study_names", lambda _: ["gone", "there"])
    monkeypatch.setattr(resume, "_record", lambda _: Facts(finished=True))
    said: list[str] = []
    assert [found.config.name for found in resume.look(store, timedelta(0), said.append)] == ["there"]
    assert said == ["gone: left alone: there is no study 'gone' in the store; it has there"]


# --- real searches -----------------------------------------------------------------------------------------------


def wait_for_round(searches: Searches, study: str, number: int) -> None:
    """Until a study has trained an epoch of a round."""
    jobs = searches.folder / "nasflow-runs" / study / "jobs"
    deadline = time.monotonic() + 120
    while not any('"epoch"' in file.read_text() for file in jobs.glob(f"r{number:03d}-*/events.jsonl")):
        assert time.monotonic() < deadline, f"study {study} trains nothing"
        time.sleep(0.02)


def end_in_round(searches: Searches, study: str, number: int, by: signal.Signals, **config: Any) -> None:
    """Start a search and end it in the middle of a round."""
    searches.write(study, **CONFIG | config)
    controller = searches.start("run", f"{study}.yaml")
    wait_for_round(searches, study, number)
    controller.send_signal(by)
    controller.communicate(timeout=60)


def flow_runs(searches: Searches, study: str) -> list[tuple[str, str]]:
    """Names and states of the flow runs of a study, in the order in which they began."""
    like = {"flow_runs": {"name": {"like_": study}}, "sort": "START_TIME_ASC"}
    runs = searches.server.post("/flow_runs/filter", like)
    return [(run["name"], run["state_type"]) for run in runs]


_DESERTS = """
import os, signal, sys
from pathlib import Path
from nasflow.config.search import load_config
from nasflow.study.lease import Lease
from nasflow.study.study import Study
Study.open(load_config(Path(sys.argv[1])), Lease())
os.kill(os.getpid(), signal.SIGKILL)
"""


_RESUMES = """
import sys
from pathlib import Path
from nasflow.config.search import load_config
from nasflow.flows.recovery.resume import _resume

sys.executable = sys.argv[2]
_resume(load_config(Path(sys.argv[1])), apart=False).wait()
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [(".env", "PREFECT_API_URL={url}"), ("prefect.toml", "[api]\nurl = '{url}'")],
)
def test_a_resumed_search_uses_the_server_that_a_file_of_this_folder_names(searches, file, text):
    path = searches.write("named", **CONFIG)
    (searches.folder / file).write_text(text.format(url=searches.server.url))
    program = searches.folder / "shows-its-environment"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    environment = {name: value for name, value in searches.server.env.items() if name != "PREFECT_API_URL"}
    ended = run_forked(["python", "-c", _RESUMES, path, program], searches.folder, environment)
    assert ended.returncode == 0, ended.stderr
    shown = (searches.folder / "nasflow-runs" / "named" / "recover.log").read_text().splitlines()
    assert f"PREFECT_API_URL={searches.server.url}" in shown


@pytest.mark.parametrize("apart", [True, False])
def test_a_search_that_is_resumed_apart_does_not_use_a_server_that_ends_with_this_process(searches, apart):
    path = searches.write("apart", **CONFIG)
    uses = "from nasflow.flows.server.in_use import use_server\nuse_server('http://127.0.0.1:1/api', False, None)\n"
    program = searches.folder / "shows-its-environment"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    environment = {name: value for name, value in searches.server.env.items() if name != "PREFECT_API_URL"}
    code = uses + _RESUMES.replace("apart=False", f"apart={apart}")
    ended = run_forked(["python", "-c", code, path, program], searches.folder, environment)
    assert ended.returncode == 0, ended.stderr
    shown = (searches.folder / "nasflow-runs" / "apart" / "recover.log").read_text()
    assert ("PREFECT_API_URL=" in shown) is not apart


@pytest.mark.long
def test_dead_searches_are_resumed(searches, undisturbed):
    end_in_round(searches, "killed", 1, signal.SIGKILL)
    path = searches.write("stranded", **CONFIG | {"base_dir": str(searches.folder)})  # where its space is not
    run_forked(["python", "-c", _DESERTS, path], searches.folder, searches.server.env)

    planned = searches.run("recover", "--dry-run", "--grace", 0).splitlines()
    assert [line.partition(":")[0] for line in planned] == ["killed", "stranded"]
    assert all("its controller died" in line and line.endswith("; would be resumed") for line in planned)
    assert dict(flow_runs(searches, "killed"))["killed"] == "RUNNING"

    lines = {line.partition(":")[0]: line for line in searches.run("recover", "--grace", 0, code=1).splitlines()}
    assert lines.keys() == {"killed", "stranded"}
    assert lines["killed"].endswith("; resumed, ended well")
    assert "resumed, ended with code 2 (see " in lines["stranded"] and "there is no file" in lines["stranded"]
    assert searches.json("leaderboard", "killed") == undisturbed
    assert flow_runs(searches, "killed") == [
        ("killed", "CRASHED"),
        ("killed: round 0", "COMPLETED"),
        ("killed: round 1", "CRASHED"),
        ("killed", "COMPLETED"),
        ("killed: round 1", "COMPLETED"),
        ("killed: round 2", "COMPLETED"),
    ]


@pytest.mark.long
def test_what_was_stopped_on_purpose_is_resumed_by_its_name_only(searches, undisturbed):
    end_in_round(searches, "stopped", 0, signal.SIGINT)
    assert "stopped: left alone: unfinished; its flow run was cancelled" in searches.run("recover", "--grace", 0)
    searches.run("recover", "stopped")
    assert searches.json("leaderboard", "stopped") == undisturbed


def test_a_run_of_a_deployment_goes_back_to_its_worker(searches):
    path = searches.write("deployed", **CONFIG)
    run_forked(["python", "-c", _DESERTS, path], searches.folder, searches.server.env)
    post = searches.server.post
    deployment = post("/deployments/", {"name": "test", "flow_id": post("/flows/", {"name": "nas-search"})["id"]})
    parameters = {"config": {**CONFIG, "name": "deployed"}}
    run = post(f"/deployments/{deployment['id']}/create_flow_run", {"name": "deployed", "parameters": parameters})
    crashed = {"state": {"type": "CRASHED", "name": "Crashed"}, "force": True}
    post(f"/flow_runs/{run['id']}/set_state", crashed)

    assert "flow run is Crashed, but no one runs it; handed over to a worker" in searches.run("recover", "--grace", 0)
    assert flow_runs(searches, "deployed") == [("deployed", "SCHEDULED")]
    assert "deployed: well: Prefect has its flow run Scheduled" in searches.run("recover", "--grace", 0)


@pytest.mark.long
def test_the_flow_that_a_schedule_calls(searches, undisturbed):
    end_in_round(searches, "scheduled", 1, signal.SIGKILL)
    code = "from nasflow.flows import recover\nprint(recover(grace_seconds=0))"
    variables = searches.server.env | {"NASFLOW_STORE": "sqlite:///nasflow.db"}
    ended = run_forked(["python", "-c", code], searches.folder, variables, timeout=200)
    assert (ended.returncode, ended.stdout.split()[-1]) == (0, "0"), ended.stderr
    assert searches.json("leaderboard", "scheduled") == undisturbed
    runs = searches.server.post("/flow_runs/filter", {"flows": {"name": {"any_": ["nas-recover"]}}})
    assert [(run["state_type"], run["state"]["message"]) for run in runs] == [("COMPLETED", "1 searches checked")]
    shown = searches.server.post("/artifacts/latest/filter", {"artifacts": {"key": {"any_": ["nas-recover"]}}})
    assert "scheduled: dead: its controller died" in shown[0]["data"] and "ended well" in shown[0]["data"]


@pytest.mark.long
def test_the_flow_need_not_wait_for_the_searches(searches):
    path = searches.write("apart", **CONFIG | {"base_dir": str(searches.folder)})  # where its space is not
    run_forked(["python", "-c", _DESERTS, path], searches.folder, searches.server.env)
    code = "from nasflow.flows import recover\nprint(recover(grace_seconds=0, wait=False))"
    variables = searches.server.env | {"NASFLOW_STORE": f"sqlite:///{searches.folder}/nasflow.db"}
    worker = searches.folder / "worker"  # has a folder for each run, which it removes
    worker.mkdir()
    ended = run_forked(["python", "-c", code], worker, variables, timeout=200)
    worker.rmdir()
    assert ended.stdout.split()[-1:] == ["0"], ended.stderr
    log = searches.folder / "nasflow-runs" / "apart" / "recover.log"
    shown = searches.server.post("/artifacts/latest/filter", {"artifacts": {"key": {"any_": ["nas-recover"]}}})
    assert f"resumed, its log is {log}" in shown[0]["data"]
    deadline = time.monotonic() + 120
    while "there is no file" not in log.read_text():  # the search went on after the flow run
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("persist", ["false", "true"])
def test_the_same_flow_run_again_resumes(searches, undisturbed, persist):
    """As `prefect flow-run retry`, a worker of a deployment or a flow's `retries` do, with persisted results or none.

    Prefect counts subflows: the first round that is left is for it the first that it has seen.
    """
    searches.server.env["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] = persist
    try:
        study = f"again-{persist}"
        end_in_round(searches, study, 1, signal.SIGKILL)
        (run,) = searches.server.post("/flow_runs/filter", {"flow_runs": {"name": {"any_": [study]}}})
        crashed = {"state": {"type": "CRASHED", "name": "Crashed"}, "force": True}
        searches.server.post(f"/flow_runs/{run['id']}/set_state", crashed)
        retry = ["prefect", "flow-run", "retry", run["id"], "--entrypoint", "nasflow.flows.search_flow.search"]
        ended = run_forked(retry, searches.folder, searches.server.env, timeout=200)
    finally:
        del searches.server.env["PREFECT_RESULTS_PERSIST_BY_DEFAULT"]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert searches.json("leaderboard", study) == undisturbed
    assert [record["state"] for record in searches.json("show", study)["rounds"]] == ["completed"] * 3
    (again,) = searches.server.post("/flow_runs/filter", {"flow_runs": {"name": {"any_": [study]}}})
    assert (again["id"], again["state_type"], again["run_count"]) == (run["id"], "COMPLETED", 2)
    trained = [(e["trial"], e["epoch"]) for e in searches.events(study) if e["kind"] == "epoch" and not e["replayed"]]
    assert len(trained) == len(set(trained)), "an epoch that had been told was trained again"
