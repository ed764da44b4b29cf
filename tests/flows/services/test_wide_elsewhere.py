"""Trials on several devices of a machine that shares no folder with the search; their epochs are carried there."""

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.testing.training_service import mentions, running
from tests.flows.searches import PrefectServer, Searches
from tests.object_store.s3 import S3, on_nodes
from tests.slurm import Slurm, slurm
from tests.sshd import Sshd, ssh_section, start_sshd

__all__ = ["slurm"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

EPOCHS, BATCHES, KILLED_AFTER = 6, 23, 3


def write(searches: Searches, service: dict[str, Any], **evaluator: Any) -> None:
    space = {"target": "spaces.py:counted", "params": {"file": str(searches.folder / "steps"), "delay": 0.02}}
    trained = {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": EPOCHS,
        "optimizer": {"name": "adam", "lr": 0.01},
        "precision": "64-true",
        "parallel": {"strategy": "fsdp", "devices": 2},
        **evaluator,
    }
    config = {"budget": {"rounds": 1, "trials_per_round": 1}, "retry": {"delay_seconds": [0.1]}, "seed": 3}
    searches.write("search", space=space, evaluator=trained, training_service=service, **config)


def run(searches: Searches, kill: Any) -> dict[str, float]:
    """Run the search, call `kill` once some epochs are on record, and check that none of these is trained again."""
    with searches.start("run", "search.yaml") as process:
        while (on_record := len(epochs(searches))) < KILLED_AFTER:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        kill()
        output = process.communicate(timeout=400)[0]
        assert process.wait() == 0, output
    assert epochs(searches) == [*range(1, EPOCHS + 1)], "each once"
    often = Counter(map(int, (searches.folder / "steps").read_text().split()))
    assert sorted(often) == [*range(EPOCHS * BATCHES)]
    safe = range(on_record * BATCHES)
    assert {often[step] for step in safe} == {2}, "each rank has trained each step of an epoch on record once"
    return metrics(searches)


def metrics(searches: Searches) -> dict[str, float]:
    (trial,) = searches.json("show", "search")["trials"]
    found: dict[str, float] = trial["metrics"]
    return found


def epochs(searches: Searches) -> list[int]:
    """The epochs on record, each as often as it was trained.

    A host may be lost between an epoch's checkpoint and its report; then the next job reports it, as replayed.
    """
    events = [event for event in searches.events("search") if event["kind"] == "epoch"]
    trained = [event["epoch"] for event in events if not event["replayed"]]
    return sorted([*trained, *({event["epoch"] for event in events} - {*trained})])


def test_a_host_is_lost_and_another_one_goes_on(searches: Searches, prefect_server: PrefectServer) -> None:
    with ExitStack() as stack:
        hosts = [stack.enter_context(start_sshd(searches.folder / "hosts" / name)) for name in "ab"]
        entries = [host.config_host(slots=2) for host in hosts]
        write(searches, ssh_section(hosts, searches.folder / "known", hosts=entries, lost_after=2, connect_timeout=2))
        found = run(searches, lambda: _cut_power(next(host for host in hosts if _trains(host))))
        (attempt,) = searches.json("show", "search")["attempts"]
        assert attempt["restarts"] and attempt["slot"].endswith("/cpu-0"), "both slots of a host are one"
    assert not list((searches.folder / "nasflow-runs/search/trials/00000").glob("*ranks*")), "the weights are whole"
    (searches.folder / "solo").mkdir()
    solo = Searches(searches.folder / "solo", prefect_server)
    write(solo, {"kind": "local", "slots": 1}, parallel=None)
    solo.run("run", "search.yaml")
    assert found == pytest.approx(metrics(solo), abs=1e-6), "as one process; torchmetrics computes in single precision"


def test_a_job_on_a_node_goes_on_from_the_object_store(
    prefect_server: PrefectServer, slurm: Slurm, tmp_path: Path
) -> None:
    searches = Searches(tmp_path, PrefectServer(prefect_server.url, prefect_server.env | slurm.environment))
    s3 = S3()
    try:
        storage = on_nodes(s3.storage()) | {"scratch": str(tmp_path / "scratch")}
        write(searches, {"kind": "slurm", "max_jobs": 1, "poll_seconds": 0.3, "storage": storage})
        run(searches, lambda: os.kill(_started(searches), signal.SIGKILL))
        assert s3.objects() == []
    finally:
        s3.close()


def _started(searches: Searches) -> int:
    return int([event["pid"] for event in searches.events("search") if event["kind"] == "started"][-1])


def _cut_power(host: Sshd) -> None:
    host.stop()
    while left := _processes(host):
        for process in left:
            process.kill()


def _trains(host: Sshd) -> bool:
    return any((host.folder / "work").rglob("trials/00000/ranks"))


def _processes(host: Sshd) -> list[psutil.Process]:
    place = str(Path(host.config_host()["work_dir"]))
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if mentions(process, place) and running(process)]
