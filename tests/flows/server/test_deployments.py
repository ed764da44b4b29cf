"""Searches as deployments: what is deployed, what is refused, and runs by a worker and without one."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.server.api import collections_data
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import TypeAdapter

from nasflow.config.search import parse_config
from nasflow.errors import StudyError, UserError
from nasflow.flows.commands.deploy.schedules import When, schedule_text
from nasflow.flows.deployment import apply_deployment, search_deployment
from nasflow.flows.server.client import prefect_client
from nasflow.study.database.store import Store
from nasflow.study.study import Study
from tests.flows.deployed_searches import PATIENCE, Deployments
from tests.flows.searches import PrefectServer, Searches

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"
CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 10, 12, 14, 16, 18]}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1},
    "budget": {"rounds": 1, "trials_per_round": 1},
    "training_service": {"kind": "local", "slots": 1},
}

# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (When(), None),
        (When(cron="0 2 * * *"), "at '0 2 * * *' (UTC)"),
        (When(cron="0 2 * * *", timezone="Europe/Berlin"), "at '0 2 * * *' (Europe/Berlin)"),
        (When(interval="90"), "every 0:01:30"),
        (When(interval="1.5h"), "every 1:30:00"),
        (When(interval="7d"), "every 7 days, 0:00:00"),
        (When(rrule="FREQ=WEEKLY;BYDAY=SA"), "at 'FREQ=WEEKLY;BYDAY=SA' (UTC)"),
    ],
)
def test_a_schedule_is_what_the_options_say(when, words):
    schedule = when.schedule()
    assert (schedule and schedule_text(schedule)) == words


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (When(cron="at night"), r"--cron 'at night' can't be used: "),
        (When(rrule="FREQ=SOMETIMES"), r"--rrule 'FREQ=SOMETIMES' can't be used: "),
        (When(interval="0"), r"--interval '0' can't be used: give seconds, or a number with m, h or d, such as 12h"),
        (When(interval="a while"), r"--interval 'a while' can't be used"),
        (When(cron="0 2 * * *", timezone="Berlin"), r"--timezone 'Berlin' can't be used: "),
        (When(interval="1h", timezone="Berlin"), r"--timezone 'Berlin' can't be used: "),
        (When(rrule="FREQ=DAILY", timezone="Berlin"), r"--timezone 'Berlin' can't be used: "),
        (When(timezone="Europe/Berlin"), r"--timezone belongs to a schedule"),
        (When(cron="0 2 * * *", interval="1h"), r"give only one of --cron, --interval"),
    ],
)
def test_a_schedule_that_can_not_be_used_is_refused_in_a_sentence(when, words):
    with pytest.raises(UserError, match=words) as refused:
        when.schedule()
    assert "\n" not in str(refused.value)


# --- what is shipped ---------------------------------------------------------------------------------------------


def registered(package: str, kind: str) -> Any:
    """The default base job template of a kind of worker, as Prefect's registry has it."""
    views = Path(collections_data.__path__[0]) / "views" / "aggregate-worker-metadata.json"
    return json.loads(views.read_text())[package][kind]["default_base_job_configuration"]


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_base_job_templates_say_what_their_workers_know(kind):
    ours = json.loads((DEPLOYMENTS / f"{kind}-pool.json").read_text())
    theirs = registered(f"prefect-{kind}", kind)
    assert set(ours["job_configuration"]) <= set(theirs["job_configuration"])
    used = set(re.findall(r"{{ (\w+) }}", json.dumps(ours["job_configuration"])))
    assert used == set(ours["variables"]["properties"])
    assert {"command", "env", "labels", "name", "image"} <= used
    for name, variable in ours["variables"]["properties"].items():
        assert variable["title"]
        assert variable["description"]
        of_theirs = theirs["variables"]["properties"].get(name, variable)
        assert variable["type"] == of_theirs["type"]
        assert variable.get("enum") == of_theirs.get("enum")
    manifest = ours["job_configuration"].get("job_manifest")
    if manifest is not None:  # Prefect's worker changes these places of it
        pod = manifest["spec"]["template"]["spec"]
        assert [container["name"] for container in pod["containers"]] == ["prefect-job"]
        assert pod["containers"][0]["args"] == "{{ command }}"
        assert manifest["metadata"]["generateName"] == "{{ name }}-"


def test_a_new_volume_of_kubernetes_can_be_written_by_the_user_of_the_image():
    pool = json.loads((DEPLOYMENTS / "kubernetes-pool.json").read_text())
    pod = pool["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    user = re.search(r"useradd .*--uid (\d+) --user-group nasflow", (DEPLOYMENTS / "Dockerfile").read_text())
    assert user is not None and pod["securityContext"] == {"fsGroup": int(user[1])}


def test_the_compose_file_is_whole():
    compose = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "redis", "server", "services", "setup", "worker"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]
        if "build" in service:
            assert (DEPLOYMENTS / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    text = (DEPLOYMENTS / "compose.yaml").read_text()
    for secret in ("POSTGRES_PASSWORD", "NASFLOW_DB_PASSWORD", "PREFECT_SERVER_API_AUTH_STRING"):
        assert f"${{{secret}:?}}" in text  # from the environment, and refused without


def test_the_server_of_the_compose_file_is_reached_from_elsewhere_only_if_asked():
    compose = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
    assert [port for service in compose["services"].values() for port in service.get("ports", [])] == [
        "${SERVER_ADDRESS:-127.0.0.1}:4200:4200"
    ]


def test_searches_have_a_database_user_of_their_own(postgresql_server, tmp_path):
    """The statements of the compose file, run by a real psql as PostgreSQL's image runs them."""
    import psycopg

    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("no psql on this machine")
    compose = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
    script = tmp_path / "studies.sql"
    script.write_text(compose["configs"]["studies"]["content"])
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE prefect")
        try:
            environment = {**os.environ, "NASFLOW_DB_PASSWORD": "it's"}
            command = [psql, "-v", "ON_ERROR_STOP=1", "--no-psqlrc", "-f", script, postgresql_server]
            subprocess.run(command, env=environment, check=True)
            ours = postgresql_server.replace("//tester@/postgres", "//nasflow@/nasflow")
            Store(ours, create=True).close()
            with pytest.raises(StudyError, match="permission denied for database"):
                Store(ours.replace("/nasflow?", "/prefect?"), create=True)
            assert not connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'nasflow'").fetchone()[0]
        finally:
            for statement in ("DATABASE IF EXISTS nasflow", "ROLE IF EXISTS nasflow", "DATABASE prefect"):
                connection.execute(f"DROP {statement}")


@pytest.mark.parametrize("name", ["server", "setup", "worker"])
def test_the_compose_file_names_settings_that_prefect_has(name):
    from prefect.settings.base import PrefectBaseSettings
    from prefect.settings.models.root import Settings

    def names(settings: type[PrefectBaseSettings]) -> set[str]:
        known = set()
        for key, field in settings.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, PrefectBaseSettings):
                known |= names(field.annotation)
            prefix = str(settings.model_config.get("env_prefix", "PREFECT_"))
            known.add(f"{prefix}{key}".upper())
        return known

    environment = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())["services"][name]["environment"]
    ours = {key for key in environment if key.startswith("PREFECT_") and not key.startswith("PREFECT_REDIS_")}
    assert ours
    assert ours <= names(Settings)


# --- on a server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Deployments:
    """The deployments of prefect.yaml on a server, from a copy of their folder."""
    folder = tmp_path_factory.mktemp("shipped") / "deployments"
    shutil.copytree(DEPLOYMENTS, folder)
    deployments = Deployments(folder, prefect_server)
    ensure_pool(prefect_server, "nasflow", "process")
    deployments.prefect("deploy", "--all")
    return deployments


def ensure_pool(server: PrefectServer, name: str, kind: str, template: dict[str, Any] | None = None) -> None:
    try:
        server.post("/work_pools/", {"name": name, "type": kind, "base_job_template": template or {}})
    except urllib.error.HTTPError as error:
        assert error.code == 409  # it is there


def test_all_that_is_shipped_can_be_deployed(shipped):
    known = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]
    names = [deployment["name"] for deployment in known]
    assert names == ["digits-demo", "nightly", "weekly", "two-speeds", "retention", "recover"]
    for wanted in known:
        made = shipped.read(wanted["name"])
        assert made["entrypoint"] == wanted["entrypoint"]
        assert not made["pull_steps"]
        assert made["work_pool_name"] == "nasflow"
        assert made["global_concurrency_limit"]["limit"] == 1
        assert made["concurrency_options"]["collision_strategy"] == wanted["concurrency_limit"]["collision_strategy"]
        assert made["description"] == wanted["description"]
        assert len(made["schedules"]) == len(wanted["schedules"])
    demo = shipped.read("digits-demo")["parameters"]["config"]
    assert demo["name"] == "digits-demo"
    assert demo["recurring"]["study"] == "new"
    assert demo["store"] == f"sqlite:///{shipped.folder}/nasflow.db"
    assert demo["base_dir"] == str(shipped.folder)
    assert shipped.read("retention")["parameters"]["store"] == demo["store"]
    speeds = {made["slug"]: made["parameters"] for made in shipped.read("two-speeds")["schedules"]}
    assert speeds["weekdays"]["budget"]["rounds"] < speeds["weekends"]["budget"]["rounds"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"budget": {"rounds": "many"}}, "budget"),
        ({"budget": {"rounds": 0}}, "budget"),
        ({"budget": {"round": 1}}, "budget"),
        ({"config": {"name": "s", **CONFIG, "epochs": 3}}, "'epochs' was unexpected"),
        ({"config": {"name": "s", **CONFIG, "strategy": {"kind": "magic"}}}, "config.strategy"),
        ({"config": {"name": "s", **CONFIG, "seed": "x"}}, "config.seed"),
    ],
)
def test_no_run_is_made_of_bad_parameters(shipped, parameters, words):
    assert words in shipped.refusal("digits-demo", **parameters)


def test_a_schedule_of_recover_stays_when_the_file_is_deployed_again(shipped):
    id = shipped.read("recover")["id"]
    often = {"schedule": {"interval": 900}, "active": True}
    shipped.server.post(f"/deployments/{id}/schedules", [often])  # as Prefect's form does
    shipped.prefect("deploy", "--name", "recover")
    assert [made["active"] for made in shipped.read("recover")["schedules"]] == [True]


def test_the_command_line_makes_no_run_of_bad_parameters(shipped):
    said = shipped.prefect("deployment", "run", "nas-search/digits-demo", "--param", 'budget={"rounds": 0}', code=1)
    assert "budget" in said


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_work_pools_take_the_templates(shipped, kind):
    ensure_pool(shipped.server, f"nasflow-{kind}", kind, json.loads((DEPLOYMENTS / f"{kind}-pool.json").read_text()))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_worker_runs_a_deployment_with_the_parameters_of_the_command_line(prefect_server, tmp_path):
    searches, deployments = Searches(tmp_path, prefect_server), Deployments(tmp_path, prefect_server)
    searches.write("by-worker", **{**CONFIG, "budget": {"rounds": 9, "trials_per_round": 9}})
    said = searches.run("deploy", "by-worker.yaml", "--work-pool", "nowhere", code=2)
    assert "Prefect has no work pool 'nowhere'" in said
    assert said.count("\n") == 1
    ensure_pool(prefect_server, "nasflow", "process")
    first = searches.run("deploy", "by-worker.yaml", "--cron", "0 2 * * *", "--overlap", "skip")
    assert "'nas-search/by-worker' on work pool 'nasflow' runs at '0 2 * * *' (UTC)" in " ".join(first.split())
    made = deployments.read("by-worker")
    assert [schedule["schedule"]["cron"] for schedule in made["schedules"]] == ["0 2 * * *"]
    assert made["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    searches.run("deploy", "by-worker.yaml")
    made = deployments.read("by-worker")
    assert made["schedules"] == []  # deployed again, it is as it is deployed then
    assert made["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    with deployments.worker("nasflow"):
        budget = 'budget={"rounds": 2, "trials_per_round": 1}'
        said = deployments.prefect("deployment", "run", "nas-search/by-worker", "--param", budget, "--watch")
    assert "finished successfully" in said
    with closing(Study.load(f"sqlite:///{tmp_path}/nasflow.db", "by-worker")) as study:
        assert [trial.round for trial in study.trials()] == [0, 1]
        assert all(trial.status.scored for trial in study.trials())
    assert (tmp_path / "nasflow-runs" / "by-worker" / "trials" / "00000").is_dir()


@pytest.mark.long
def test_a_deployment_has_the_schedule_that_it_is_given_and_no_other(shipped, tmp_path):
    searches = Searches(tmp_path, shipped.server)
    searches.write("s", **CONFIG)

    def schedules(*options: object) -> list[tuple[str, str]]:
        searches.run("deploy", "s.yaml", "--name", "two-speeds", *options)
        return [(made["slug"], made["schedule"]["cron"]) for made in shipped.read("two-speeds")["schedules"]]

    assert len(shipped.read("two-speeds")["schedules"]) == 2  # with slugs of the file's
    try:
        assert schedules("--cron", "0 2 * * *") == [("nasflow", "0 2 * * *")]
        assert schedules("--cron", "0 3 * * *") == [("nasflow", "0 3 * * *")]
        assert schedules() == []
    finally:
        shipped.prefect("deploy", "--name", "two-speeds")


@pytest.mark.parametrize("made", [False, True])
def test_what_the_server_refuses_is_told_in_a_sentence(prefect_server, made):
    deployment = search_deployment(parse_config({"name": "refused", **CONFIG}), None, None, "wait")
    with temporary_settings({PREFECT_API_URL: prefect_server.url}), prefect_client() as client:
        if made:
            apply_deployment(client, deployment)
        deployment.parameters["budget"] = {"rounds": 0}
        with pytest.raises(UserError, match=r"Prefect refuses the deployment 'nas-search/refused': .*budget"):
            apply_deployment(client, deployment)


def test_a_server_that_is_not_there_is_told_in_a_sentence(tmp_path, prefect_server):
    nowhere = PrefectServer("", {**prefect_server.env, "PREFECT_API_URL": "http://127.0.0.1:9/api"})
    searches = Searches(tmp_path, nowhere)
    searches.write("s", **CONFIG)
    said = searches.run("deploy", "s.yaml", code=2)
    assert "http://127.0.0.1:9/api can't be reached" in " ".join(said.split())


def test_schedules_of_the_shipped_file_are_prefects(shipped):
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

    for name in ("nightly", "weekly", "two-speeds", "retention", "recover"):
        for made in shipped.read(name)["schedules"]:
            assert TypeAdapter(SCHEDULE_TYPES).validate_python(made["schedule"])


@pytest.mark.long
def test_ended_by_ctrl_c_what_was_served_leaves_no_schedule_active(prefect_server, tmp_path):
    searches, deployments = Searches(tmp_path, prefect_server), Deployments(tmp_path, prefect_server)
    searches.write("served", **CONFIG)
    with deployments.served("served.yaml", "--interval", "30d") as process:
        assert not deployments.read("served")["paused"]
        run = deployments.start("served")
        assert deployments.wait(run)["state_type"] == "COMPLETED", deployments.log
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert deployments.read("served")["paused"] or not deployments.read("served")["schedules"][0]["active"]
