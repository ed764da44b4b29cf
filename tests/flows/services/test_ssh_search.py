"""A search over three hosts, real sshd programs: hosts are lost, connections drop, controllers die."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.study.study import Study
from nasflow.testing.training_service import mentions, running
from tests.flows.searches import Searches
from tests.sshd import start_sshd

CONFIG: dict[str, Any] = {
    "space": {
        "target": "spaces.py:mixed",
        "params": {"widths": [*range(8, 40, 2)], "delay": 0.005},
    },
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 6},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 1, "trials_per_round": 6},
    "training_service": {"kind": "local", "slots": 3},
    "retry": {"delay_seconds": [0.1]},
}
pytestmark = pytest.mark.long

TRIALS = 6
DROPPED = 60.0  # seconds


@pytest.fixture
def hosts(tmp_path):
    """Three of them."""
    with (
        start_sshd(tmp_path / "hosts/a") as a,
        start_sshd(tmp_path / "hosts/b") as b,
        start_sshd(tmp_path / "hosts/c") as c,
    ):
        yield [a, b, c]


def write(searches: Searches, hosts: list[Any], **service: Any) -> None:
    known_hosts = searches.folder / "known_hosts"
    known_hosts.write_text("".join(host.known_hosts_line() for host in hosts))
    over_ssh = {
        "kind": "ssh",
        "hosts": [host.config_host(slots=1) for host in hosts],
        "known_hosts": str(known_hosts),
        "ssh_config": "/dev/null",
        **service,
    }
    searches.write("search", **CONFIG | {"training_service": over_ssh})


def wait_for_epochs(searches: Searches, count: int) -> None:
    deadline = time.monotonic() + 120
    while sum(event["kind"] == "epoch" for event in searches.events("search")) < count:
        assert time.monotonic() < deadline, "the search trains nothing"
        time.sleep(0.02)


def processes(host: Any) -> list[psutil.Process]:
    """What runs of ours on a host: its folder stands in the command line or the environment."""
    place = str(Path(host.config_host()["work_dir"]))
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if mentions(process, place) and running(process)]


def kill(host: Any) -> None:
    """What a power cut does."""
    host.stop()
    while left := processes(host):
        for process in left:
            process.kill()


def kill_controller(searches: Searches, hosts: list[Any]) -> None:
    """Of a search that trains on all hosts, where it lives on."""
    write(searches, hosts)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 8)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    assert all(processes(host) for host in hosts)


def files(host: Any) -> list[Path]:
    work_dir = Path(host.config_host()["work_dir"])
    return [path for path in work_dir.rglob("*") if path.is_file()] if work_dir.exists() else []


def assert_whole(searches: Searches, undisturbed: list[dict[str, Any]]) -> None:
    """Nothing is lost, nothing is there twice, nothing that was told was trained again."""
    assert searches.json("leaderboard", "search") == undisturbed
    trained = Counter(
        (e["trial"], e["epoch"]) for e in searches.events("search") if e["kind"] == "epoch" and not e["replayed"]
    )
    assert max(trained.values()) == 1, "an epoch that had been told was trained again"
    study = Study.load(f"sqlite:///{searches.folder}/nasflow.db", "search")
    rows = {number: [record.epoch for record in records] for number, records in study.epochs(range(TRIALS)).items()}
    study.close()
    assert rows == {number: [1, 2, 3, 4, 5, 6] for number in range(TRIALS)}, "one row of metrics a trial and epoch"


def test_three_hosts_and_nothing_is_left_on_them(searches, undisturbed, hosts):
    write(searches, hosts)
    searches.run("run", "search.yaml")
    assert_whole(searches, undisturbed)
    slots = {attempt["slot"] for attempt in searches.json("show", "search")["attempts"]}
    assert slots == {f"127.0.0.1:{host.port}/cpu-0" for host in hosts}
    assert [processes(host) for host in hosts] == [[], [], []]
    assert [files(host) for host in hosts] == [[], [], []]


def test_a_host_is_lost_in_the_middle_of_an_epoch(searches, undisturbed, hosts):
    write(searches, hosts, lost_after=2, connect_timeout=2)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 8)
    kill(hosts[1])
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert_whole(searches, undisturbed)
    restarted = [attempt for attempt in searches.json("show", "search")["attempts"] if attempt["restarts"]]
    assert restarted and all(attempt["state"] == "succeeded" for attempt in restarted)
    for host in (hosts[0], hosts[2]):
        assert not processes(host)
        assert not files(host)


def test_a_connection_drops_for_a_minute(searches, undisturbed, hosts):
    write(searches, hosts)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 8)
    hosts[1].pause()
    time.sleep(DROPPED)
    hosts[1].resume()
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert_whole(searches, undisturbed)
    assert not any(attempt["restarts"] for attempt in searches.json("show", "search")["attempts"])
    jobs = (searches.folder / "nasflow-runs/search/jobs").iterdir()
    starts = [sum('"started"' in line for line in (job / "events.jsonl").read_text().splitlines()) for job in jobs]
    assert set(starts) == {1}


def test_kill_of_the_controller(searches, undisturbed, hosts):
    """Its jobs live on, and the next one finds them."""
    kill_controller(searches, hosts)
    searches.run("run", "search.yaml")
    assert_whole(searches, undisturbed)
    assert not any(attempt["restarts"] for attempt in searches.json("show", "search")["attempts"])


def test_kill_of_the_controller_and_cleanup(searches, undisturbed, hosts):
    kill_controller(searches, hosts)
    searches.run("cleanup", "search")
    assert [processes(host) for host in hosts] == [[], [], []]
    assert [files(host) for host in hosts] == [[], [], []]
    searches.run("run", "search.yaml")
    assert_whole(searches, undisturbed)


def test_interrupt(searches, undisturbed, hosts):
    write(searches, hosts)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 8)
    controller.send_signal(signal.SIGINT)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert [processes(host) for host in hosts] == [[], [], []]
    assert [files(host) for host in hosts] == [[], [], []]
    searches.run("run", "search.yaml")
    assert_whole(searches, undisturbed)
