"""A search over two services at once, this machine and a real sshd: the host is lost, and the result is the same."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import load_config
from nasflow.flows.commands.check.hosts import check_hosts
from nasflow.flows.commands.doctor.machine import check_slots
from nasflow.flows.commands.plan.command import slot_environment
from nasflow.flows.commands.setup.pool import searches_at_once
from tests.flows.searches import Searches
from tests.flows.services.test_ssh_search import CONFIG, assert_whole, kill, processes, wait_for_epochs
from tests.sshd import start_sshd

__all__ = ["CONFIG"]  # of `undisturbed`, which trains it on this machine alone


@pytest.fixture
def host(tmp_path: Path) -> Any:
    with start_sshd(tmp_path / "host") as host:
        yield host


def write(searches: Searches, host: Any) -> None:
    over_ssh = {
        "kind": "ssh",
        "hosts": [host.config_host(slots=2)],
        "known_hosts": str(host.known_hosts),
        "ssh_config": "/dev/null",
        "lost_after": 2,
        "connect_timeout": 2,
    }
    searches.write("search", **CONFIG | {"training_service": [over_ssh, {"kind": "local", "slots": 1}]})


def test_commands_know_each_of_the_services(searches: Searches, host: Any) -> None:
    write(searches, host)
    config = load_config(searches.folder / "search.yaml")
    assert [(checked.name, checked.in_order) for checked in check_hosts(config)] == [(f"127.0.0.1:{host.port}", True)]
    said = [finding.saw for finding in check_slots(config)]
    assert said == [f"host 127.0.0.1:{host.port} can run jobs", "1 for each search: cpu-0"]
    assert searches_at_once(4, config) == 4
    local = config.training_service.model_copy(update={"services": config.training_service.services[1:]})
    assert slot_environment(config.training_service) == slot_environment(local) != {}


@pytest.mark.long
def test_the_host_of_one_service_is_lost_in_the_middle(searches: Searches, undisturbed: Any, host: Any) -> None:
    write(searches, host)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    assert processes(host)
    kill(host)
    output, _ = controller.communicate(timeout=300)
    assert controller.returncode == 0, output
    assert_whole(searches, undisturbed)
    attempts = searches.json("show", "search")["attempts"]
    assert {attempt["slot"] for attempt in attempts} == {"local/cpu-0"} | {
        attempt["slot"] for attempt in attempts if attempt["slot"].startswith("ssh/") and not attempt["restarts"]
    }
    assert any(attempt["restarts"] for attempt in attempts)
