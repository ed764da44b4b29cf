"""kill -9 in searches by ASHA and Hyperband, again and again: no bit changes, and what is left is right."""

import contextlib
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch

from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.spec import trial_dir
from nasflow.study.study import Study
from tests.flows.recovery.test_kill import processes, workers
from tests.flows.searches import PrefectServer, Searches
from tests.flows.strategies.test_hyperband import CONFIG, trained_epochs

pytestmark = pytest.mark.long

Rows = dict[int, list[tuple[int, dict[str, float]]]]
State = tuple[Any, dict[str, torch.Tensor]]
KILLS = [  # after such a share of the epochs that are trained; the first round of ASHA ends with the fourth of thirteen
    pytest.param(
        [(0.1, "controller"), (4 / 13, "controller"), (0.55, "controller"), (0.85, "controller")], id="controller"
    ),
    pytest.param([(0.15, "job"), (0.4, "worker"), (0.6, "controller"), (0.8, "job")], id="each"),
]


@dataclass(frozen=True)
class Found:
    """What a search leaves.

    Attributes:
        architectures: of the trials, in their order.
        rows: epoch and metrics on record, by trial.
        states: of the newest checkpoint, by trial that has one.
        trained: the epochs that were trained, without those that a promoted trial takes over.
        reported: the epochs that jobs have reported, trained or taken over.
    """

    architectures: list[dict[str, Any]]
    rows: Rows
    states: dict[int, State]
    trained: Counter[tuple[int, int]]
    reported: set[tuple[int, int]]


def on_record(searches: Searches) -> tuple[list[dict[str, Any]], Rows]:
    """The architectures and rows of the study."""
    architectures = [trial["architecture"] for trial in searches.json("show", "search")["trials"]]
    study = Study.load(f"sqlite:///{searches.folder}/nasflow.db", "search")
    records = study.epochs(range(len(architectures)))
    study.close()
    return architectures, {trial: [(row.epoch, dict(row.metrics)) for row in rows] for trial, rows in records.items()}


def found(searches: Searches) -> Found:
    architectures, rows = on_record(searches)
    states = {}
    for trial in range(len(architectures)):
        state = CheckpointStore(trial_dir(searches.folder / "nasflow-runs" / "search", trial)).load_newest()
        if state is not None:
            del state["seconds"]
            states[trial] = pack(state)
    epochs = {(event["trial"], event["epoch"]) for event in searches.events("search") if event["kind"] == "epoch"}
    return Found(architectures, rows, states, trained_epochs(searches, "search"), epochs)


def assert_same(states: dict[int, State], expected: dict[int, State]) -> None:
    assert states.keys() == expected.keys()
    for trial, (values, tensors) in states.items():
        assert values == expected[trial][0]
        assert tensors.keys() == expected[trial][1].keys()
        assert all(torch.equal(tensor, expected[trial][1][name]) for name, tensor in tensors.items())


@pytest.fixture(scope="module", params=["asha", "hyperband"])
def once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer
) -> tuple[dict[str, Any], Found]:
    """A config, and what its search leaves when nobody disturbs it."""
    config = CONFIG | {"strategy": {"kind": request.param, "reduction_factor": 2}}
    searches = Searches(tmp_path_factory.mktemp(request.param), prefect_server)
    searches.write("search", **config)
    searches.run("run", "search.yaml")
    return config, found(searches)


def wait_until_trained(searches: Searches, epochs: int) -> None:
    """Until so many epochs were trained, each counted once."""
    deadline = time.monotonic() + 120
    while len(trained_epochs(searches, "search")) < epochs:
        assert time.monotonic() < deadline, "the search trains nothing"
        time.sleep(0.02)


def strike(searches: Searches, victim: str) -> bool:
    """Kill a worker or a job of the search; False if none is there just now."""
    alive = workers(searches)
    if victim == "job":
        alive = [child for worker in alive for child in worker.children()]
    with contextlib.suppress(psutil.NoSuchProcess):  # a job that has just ended
        for process in alive[:1]:
            process.kill()
            return True
    return False


@pytest.mark.parametrize("kills", KILLS)
def test_no_kill_changes_a_bit(
    kills: list[tuple[float, str]], once: tuple[dict[str, Any], Found], searches: Searches
) -> None:
    """What each kill of the controller leaves on record is a part of what the whole search leaves."""
    config, expected = once
    searches.write("search", **config)
    controller, struck = searches.start("run", "search.yaml"), 0
    for share, victim in kills:
        wait_until_trained(searches, round(share * len(expected.trained)))
        if victim != "controller":
            struck += strike(searches, victim)
            continue
        assert controller.poll() is None, "the search has ended before"
        os.kill(controller.pid, signal.SIGKILL)
        controller.communicate()
        struck += 1
        architectures, left = on_record(searches)
        assert architectures == expected.architectures[: len(architectures)]
        for trial, rows in left.items():
            assert rows == expected.rows[trial][: len(rows)]
        controller = searches.start("run", "search.yaml")
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert struck >= len(kills) - 1
    whole = found(searches)
    assert (whole.architectures, whole.rows) == (expected.architectures, expected.rows)
    assert max(whole.trained.values()) == 1, "no epoch that had been reported was trained again"
    assert whole.trained.keys() <= expected.trained.keys()
    assert whole.reported == expected.reported  # an epoch that a killed job had only saved, its successor takes over
    assert_same(whole.states, expected.states)
    assert not processes(searches), "workers are left behind"
    kept = [path for path in (searches.folder / "nasflow-runs" / "search" / "trials").rglob("*") if path.is_file()]
    assert all(path.parent.name.isdigit() for path in kept), "half-written checkpoints are left behind"
