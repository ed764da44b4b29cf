"""`nasflow setup`: the automation is on the server once, as it should be, whatever was there before."""

import subprocess
import urllib.request
from typing import Any

import pytest
from flow_searches import NASFLOW, PrefectServer

from nasflow.flows.setup_command import AUTOMATION


def setup(server: PrefectServer, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NASFLOW, "setup"],
        env={**server.env, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def automations(server: PrefectServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.post("/automations/filter", {})
    return [automation for automation in found if automation["name"] == AUTOMATION]


@pytest.fixture
def server(prefect_server):
    """The session's server, without the automation afterwards: it would end what other tests have killed."""
    yield prefect_server
    for automation in automations(prefect_server):
        url = f"{prefect_server.url}/automations/{automation['id']}"
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=30).close()


def test_the_automation_is_made_once_and_kept_up_to_date(server):
    first = setup(server)
    assert first.returncode == 0, first.stderr
    assert f"{server.url}: created the automation: '{AUTOMATION}'" in first.stdout
    (made,) = automations(server)
    assert made["enabled"]
    assert made["trigger"]["posture"] == "Proactive" and made["trigger"]["within"] == 540
    assert made["trigger"]["match_related"]["prefect.resource.name"] == ["nas-*"]
    assert made["actions"][0]["state"] == "CRASHED"

    assert "there already is the automation" in setup(server).stdout
    assert automations(server) == [made]

    faster = setup(server, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
    assert "brought up to date the automation" in faster.stdout and "Crashed 90 s after" in faster.stdout
    (changed,) = automations(server)
    assert (changed["id"], changed["trigger"]["within"]) == (made["id"], 90)

    values = {key: changed[key] for key in ("name", "trigger", "actions", "description")}
    server.post("/automations/", values | {"enabled": True})
    assert len(automations(server)) == 2
    assert setup(server, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30").returncode == 0
    assert len(automations(server)) == 1


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
