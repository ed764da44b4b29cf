"""A trial on two hosts that only a network joins; whatever of it is lost, no epoch is."""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.searches import PrefectServer, Searches
from tests.flows.services.test_wide_elsewhere import BATCHES, EPOCHS, epochs, metrics, write
from tests.networks import NetworkHost, start_hosts
from tests.sshd import ssh_section

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PARALLEL = {"strategy": "fsdp", "devices": 1, "nodes": 2}


def section(searches: Searches, hosts: list[NetworkHost], **options: Any) -> dict[str, Any]:
    entries = [host.config_host(slots=1) for host in hosts]
    return ssh_section(hosts, searches.folder / "known", hosts=entries, **options)


def ranks(host: NetworkHost) -> list[psutil.Process]:
    """The processes there that train, and the job's own."""
    place = str(host.folder / "work")
    found = []
    for process in psutil.process_iter():
        try:
            if any(file.path.startswith(place) and ".ranks.lock" in file.path for file in process.open_files()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def await_epoch(searches: Searches, process: Any, number: int) -> int:
    """Wait for so many epochs on record, and return how many there are."""
    while (found := len(epochs(searches))) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def trained(searches: Searches, count: int) -> Counter[int]:
    """How often each step of the first epochs was trained."""
    steps = Counter(map(int, (searches.folder / "steps").read_text().split()))
    return Counter({step: often for step, often in steps.items() if step < count * BATCHES})


def test_a_rank_is_killed_and_a_host_loses_its_power(searches: Searches, prefect_server: PrefectServer) -> None:
    with start_hosts(searches.folder / "hosts", "abc") as hosts:
        write(searches, section(searches, hosts, lost_after=2, connect_timeout=2), parallel=PARALLEL)
        with searches.start("run", "search.yaml") as process:
            before = [trained(searches, await_epoch(searches, process, 1))]
            trains = [host for host in hosts if ranks(host)]
            assert len(trains) == 2
            ranks(trains[1])[-1].kill()
            before.append(trained(searches, await_epoch(searches, process, 3)))
            next(host for host in hosts if ranks(host)).cut_power()
            output = process.communicate(timeout=400)[0]
            assert process.wait() == 0, output
    assert epochs(searches) == [*range(1, EPOCHS + 1)], "each once"
    assert sorted(trained(searches, EPOCHS)) == [*range(EPOCHS * BATCHES)]
    assert set(before[0].values()) == {2}, "by each rank once"
    for then in before:
        assert trained(searches, len(then) // BATCHES) == then, "no step of an epoch on record was trained again"
    (searches.folder / "solo").mkdir()
    solo = Searches(searches.folder / "solo", prefect_server)
    write(solo, {"kind": "local", "slots": 1}, parallel=None)
    solo.run("run", "search.yaml")
    assert metrics(searches) == pytest.approx(metrics(solo), abs=1e-6), "torchmetrics computes in single precision"


def test_a_network_that_is_cut_between_hosts(searches: Searches, tmp_path: Path) -> None:
    with start_hosts(searches.folder / "hosts", "ab") as hosts:
        write(searches, section(searches, hosts, lost_after=3, connect_timeout=2), parallel=PARALLEL)
        with searches.start("run", "search.yaml") as process:
            await_epoch(searches, process, 2)
            hosts[1].unplug()
            time.sleep(8)
            hosts[1].plug_in()
            output = process.communicate(timeout=400)[0]
            assert process.wait() == 0, output
    assert epochs(searches) == [*range(1, EPOCHS + 1)], "each once"


def test_a_killed_search_goes_on_with_other_numbers_of_hosts(searches: Searches) -> None:
    with start_hosts(searches.folder / "hosts", "abc") as hosts:
        entries = [host.config_host(slots=2) for host in hosts]
        service = ssh_section(hosts, searches.folder / "known", hosts=entries)
        ends = [signal.SIGKILL, signal.SIGINT, None]
        for done, (devices, nodes) in enumerate([(1, 2), (2, 1), (1, 3)]):
            write(searches, service, parallel=PARALLEL | {"devices": devices, "nodes": nodes})
            process = searches.start("run", "search.yaml")
            await_epoch(searches, process, done + 1)
            if (end := ends[done]) is not None:
                process.send_signal(end)
            output = process.communicate(timeout=400)[0]
        assert process.wait() == 0, output
    assert epochs(searches) == [*range(1, EPOCHS + 1)], "each once"
