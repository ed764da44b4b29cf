"""`nasflow setup`: what searches need is on the server once, as it should be, whatever was there before."""

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import load_config
from nasflow.errors import UserError
from nasflow.flows.commands.setup.pool import searches_at_once
from nasflow.flows.commands.setup.secrets import secret_names
from nasflow.flows.server.automations import ZOMBIES
from tests.flows.forked_commands import run_forked
from tests.flows.searches import NASFLOW, PrefectServer

POOL = "set-up-here"
SEARCH = {
    "space": {"target": "spaces.py:mixed"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
}


def setup(server: PrefectServer, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["nasflow", "setup", "--work-pool", POOL, *arguments]
    return run_forked(command, Path.cwd(), {**server.env, **environment}, timeout=240)


def things(server: PrefectServer, *arguments: object, **environment: str) -> list[dict[str, str]]:
    """What the command made and found."""
    ended = setup(server, *arguments, "--json", **environment)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["made"]


def made(server: PrefectServer, *arguments: object, **environment: str) -> dict[str, str]:
    """What was done to each kind of thing, and to each secret."""
    return {
        thing["name"] if thing["what"] == "secret" else thing["what"]: thing["done"]
        for thing in things(server, *arguments, **environment)
    }


def automations(server: PrefectServer, name: str = ZOMBIES) -> list[dict[str, Any]]:
    return [found for found in server.post("/automations/filter", {}) if found["name"].startswith(name)]


def pools(server: PrefectServer) -> list[dict[str, Any]]:
    return server.post("/work_pools/filter", {"work_pools": {"name": {"any_": [POOL]}}})


def secret(server: PrefectServer, name: str) -> Any:
    """What the block holds, None if there is none."""
    body = {"block_documents": {"name": {"any_": [name]}}, "include_secrets": True}
    found = server.post("/block_documents/filter", body)
    return found[0]["data"]["value"] if found else None


@pytest.fixture
def server(prefect_server):
    """The session's server, without what was made afterwards: an automation would end what other tests have killed."""
    yield prefect_server
    for automation in automations(prefect_server, "nasflow: "):
        prefect_server.call("DELETE", f"/automations/{automation['id']}")
    for block in prefect_server.post("/block_documents/filter", {}):
        prefect_server.call("DELETE", f"/block_documents/{block['id']}")
    for pool in pools(prefect_server):
        prefect_server.call("DELETE", f"/work_pools/{pool['name']}")


def test_everything_is_made_once_and_kept_up_to_date(server):
    first = setup(server)
    assert first.returncode == 0, first.stderr
    assert f"set up: {server.url}" in first.stdout
    assert [first.stdout.count(word) for word in ("created", "changed", "found")] == [2, 0, 0]
    assert f"prefect worker start --pool {POOL}\n" in first.stdout
    (pool,), (automation,) = pools(server), automations(server)
    assert (pool["type"], pool["concurrency_limit"], pool["is_paused"]) == ("process", None, False)
    assert "command" in pool["base_job_template"]["variables"]["properties"], "the template is Prefect's own"
    assert automation["enabled"]
    assert automation["trigger"]["posture"] == "Proactive" and automation["trigger"]["within"] == 540
    assert automation["trigger"]["match_related"]["prefect.resource.name"] == ["nas-*"]
    assert automation["actions"][0]["state"] == "CRASHED"

    assert made(server) == {"work pool": "found", "automation": "found"}
    assert (pools(server), automations(server)) == ([pool], [automation])

    assert made(server, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30") == {"work pool": "found", "automation": "changed"}
    (changed,) = automations(server)
    assert (changed["id"], changed["trigger"]["within"]) == (automation["id"], 90)

    values = {key: changed[key] for key in ("name", "trigger", "actions", "description")}
    server.post("/automations/", values | {"enabled": True})
    assert len(automations(server)) == 2, "as after two setups at a time"
    assert made(server, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")["automation"] == "found"
    (only,) = automations(server)

    server.call("PATCH", f"/automations/{only['id']}", enabled=False)
    assert made(server)["automation"] == "left as it is"
    assert not automations(server)[0]["enabled"]


def test_automations_that_notify_and_pause(server):
    lacking = setup(server, "--notify-best", "slack-webhook/none-such")
    assert lacking.returncode == 2
    assert "Prefect has no notification block 'slack-webhook/none-such'" in lacking.stderr
    assert not pools(server)
    block = (
        "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block\n"
        "print(Block(name='team', url='http://127.0.0.1:9').save('team', overwrite=True))"
    )
    saved = run_forked(["python", "-c", block], Path.cwd(), server.env, timeout=120)
    assert saved.returncode == 0, saved.stderr
    arguments = ("--notify-best", "custom-webhook/team", "--pause-without-gain", 3)
    done = [thing["done"] for thing in things(server, *arguments) if thing["what"] == "automation"]
    assert done == ["created"] * 3
    by_name = {found["name"]: found for found in server.post("/automations/filter", {})}
    tell, pause = by_name["nasflow: tell of a new best"], by_name["nasflow: pause without gain"]
    assert tell["actions"][0]["block_document_id"] == saved.stdout.strip()
    assert pause["trigger"]["match"]["nasflow.rounds-without-gain"] == "3"


def test_slots_are_the_pools_limit(server, searches):
    path = searches.write("two-slots", **SEARCH, training_service={"kind": "local", "slots": 2})
    assert made(server, path, "--slots", 5)["work pool"] == "created"
    assert pools(server)[0]["concurrency_limit"] == 2, "a search of this config takes two of the five slots"
    assert made(server, path)["work pool"] == "found"
    assert pools(server)[0]["concurrency_limit"] == 2
    assert made(server, "--slots", 3)["work pool"] == "changed"
    assert pools(server)[0]["concurrency_limit"] == 3

    assert searches_at_once(2, load_config(path)) == 1
    with pytest.raises(UserError, match="a search of this config takes 2 slots, so none could ever run"):
        searches_at_once(1, load_config(path))


def test_secrets_come_from_the_environment(server, searches):
    hosts = [{"host": "one", "password": {"prefect_block": "host-one"}}, {"host": "two"}]
    config = searches.write("hosts", **SEARCH, training_service={"kind": "ssh", "hosts": hosts})
    names = ("host-one", "from-env")

    missing = setup(server, config, "--secret", "from-env", FROM_ENV="1.10")
    assert missing.returncode == 2
    assert "secret 'host-one': there is no terminal" in missing.stderr and "HOST_ONE" in missing.stderr
    assert not pools(server) and not any(secret(server, name) for name in names), "all or nothing"

    values = {"FROM_ENV": "1.10", "HOST_ONE": "pass word\\"}
    ended = setup(server, config, "--secret", "FROM_ENV", **values)
    assert ended.returncode == 0, ended.stderr
    assert [secret(server, name) for name in names] == ["pass word\\", "1.10"]
    assert not any(value in ended.stdout + ended.stderr for value in values.values())

    done = made(server, config, "--secret", "from-env", FROM_ENV="1.20")
    assert [done[name] for name in names] == ["found", "changed"]
    assert [secret(server, name) for name in names] == ["pass word\\", "1.20"]
    with pytest.raises(UserError, match="consist of letters, digits and dashes"):
        secret_names(["a b"], None)


def test_a_secret_is_typed_in_unseen(server):
    ours, theirs = pty.openpty()
    command = [*NASFLOW, "setup", "--work-pool", POOL, "--secret", "typed-in"]
    process = subprocess.Popen(
        command, env=server.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    while b"'typed-in' (it is not shown): " not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, b"unseen words\n")
    with contextlib.suppress(OSError):  # the terminal's other end is closed when the command ends
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert process.wait(60) == 0, shown
    assert secret(server, "typed-in") == "unseen words"
    assert b"unseen" not in shown


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PREFECT_API_URL": ""}, "no Prefect server is configured: start one with 'prefect server start'"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}, "can't be reached"),
    ],
)
def test_without_a_server_it_says_so(prefect_server, environment, words):
    ended = setup(prefect_server, **environment)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ") and words in ended.stderr
