"""How workers start: several from one program, and early, before it is known that there is anything to run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.local import LocalServiceConfig
from nasflow.testing.training_service import await_status, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.files.controller_calls import ControllerCalls
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import ROOT_VARIABLE, TOKEN_VARIABLE, LocalState, WorkerRecord
from nasflow.training_service.local.worker import Worker
from nasflow.training_service.machine.processes import carriers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker is a program of its own")

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
_CONTROLLER = """
import sys, time
from pathlib import Path
from nasflow.config.services.local import LocalServiceConfig
from nasflow.training_service.local.service import LocalService
with LocalService(LocalServiceConfig(slots=2), Path(sys.argv[1])).early_start():
    print("started", flush=True)
    time.sleep(300)
"""


def make(root: Path, slots: int = 2, preload: tuple[str, ...] = ()) -> LocalService:
    return LocalService(LocalServiceConfig(slots=slots, idle_timeout=60), root, runner=SCRIPTED, preload=preload)


def records(root: Path) -> dict[str, WorkerRecord]:
    state = LocalState(root)
    with state.lock():
        return {worker.slot: worker for worker in state.workers()}


def ready(root: Path) -> dict[str, WorkerRecord]:
    """The workers once both have started up."""
    until(lambda: len(list(root.glob("local/workers/*/ready"))) == 2, "ready workers")
    return records(root)


def programs(root: Path) -> list[psutil.Process]:
    return carriers(ROOT_VARIABLE, str(root))


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()
    assert not programs(tmp_path / "root")


def test_one_program_forks_the_workers_and_each_is_found_by_its_own_token(root):
    service = make(root)
    service.prepare()
    (program,) = {worker.process.pid for worker in records(root).values()}
    workers = ready(root)
    pids = {slot: worker.process.pid for slot, worker in workers.items()}
    assert {psutil.Process(pid).ppid() for pid in pids.values()} == {program}
    assert len({os.getsid(pid) for pid in (program, *pids.values())}) == 3
    handles = [service.submit(script(f"job-{i}", ["spawn", "session"], ["wait", "never"])) for i in range(2)]
    for i, handle in enumerate(handles):
        slot = await_status(service, handle, JobStatus.RUNNING).slot
        until(lambda i=i: numbers(service, f"jobs/job-{i}/pids"), "session")
        offspring = numbers(service, f"jobs/job-{i}/pids") + numbers(service, f"jobs/job-{i}/runs")
        found = {process.pid for process in carriers(TOKEN_VARIABLE, workers[slot].token)}
        assert found == {pids[slot], *offspring}  # the forked and the executed, of this worker and no other


def test_workers_outlive_the_program_that_forked_them(root):
    service = make(root)
    service.prepare()
    workers = ready(root)
    psutil.Process(workers["cpu-0"].process.pid).parent().kill()
    assert finish(service, service.submit(script("job"))).exit_code == 0
    assert records(root) == workers


def test_the_program_ends_after_its_last_worker(root):
    make(root).prepare()
    for worker in ready(root).values():
        os.kill(worker.process.pid, signal.SIGTERM)
    until(lambda: not programs(root), "end of the program")


def test_a_signal_during_a_look_for_the_controller_is_not_lost(root, monkeypatch):
    worker = Worker(root, "cpu-0", SCRIPTED, 60, fresh=False, abandoned_after=60)

    def signalled(_: ControllerCalls) -> str:
        worker.tell_to_end()
        return ""

    monkeypatch.setattr(ControllerCalls, "missing", signalled)
    assert worker._must_end() == "its worker was asked to end"


def test_a_slot_that_is_given_up_while_the_program_starts_costs_the_others_nothing(root):
    slow = ("torch",)
    make(root, preload=slow).prepare()
    narrow = make(root, slots=1, preload=slow)
    narrow.prepare()
    assert finish(narrow, narrow.submit(script("job"))).exit_code == 0
    assert set(records(root)) == {"cpu-0"}


def test_prepare_takes_the_program_that_was_started_early(root):
    service = make(root)
    with service.early_start():
        (program,) = until(lambda: programs(root), "early program")  # its environment can be read a moment later
        assert not root.exists()
        service.prepare()
        assert {psutil.Process(worker.process.pid).ppid() for worker in ready(root).values()} == {program.pid}
    assert finish(service, service.submit(script("job"))).exit_code == 0


def test_what_an_early_program_says_stands_in_the_log_of_its_first_slot(root):
    service = make(root, preload=("no_such_module", "this"))
    with service.early_start():
        service.prepare()
        ready(root)
    said = (root / "local/logs/cpu-0.log").read_text()
    assert "No module named 'no_such_module'" in said
    assert "The Zen of Python" in said, "the other modules are imported all the same"


def test_an_early_program_that_is_not_used_ends_and_leaves_nothing(root):
    with pytest.raises(KeyError), make(root).early_start():
        until(lambda: bool(programs(root)), "early program")  # its environment can be read a moment after it began
        raise KeyError
    assert not programs(root)
    assert not root.exists()


def test_an_early_program_ends_with_its_killed_controller(root):
    with subprocess.Popen([sys.executable, "-c", _CONTROLLER, str(root)], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None and controller.stdout.readline() == b"started\n"
        until(lambda: bool(programs(root)), "early program")
        controller.kill()
    until(lambda: not programs(root), "end of the early program")
    assert not root.exists()


def test_an_early_program_that_was_killed_is_replaced(root):
    service = make(root)
    with service.early_start():
        until(lambda: programs(root), "the program")
        programs(root)[0].kill()
        service.prepare()
        assert finish(service, service.submit(script("job"))).exit_code == 0


def test_nothing_starts_early_where_workers_may_be_found(root):
    service = make(root)
    service.prepare()
    workers = ready(root)
    again = make(root)
    with again.early_start():
        again.prepare()
        assert len(programs(root)) == 3
    assert records(root) == workers
