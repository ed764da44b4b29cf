"""The local service keeps the contract, and its own promises: warm workers, shares of the machine, re-attachment."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from nasflow.config.search import CheckpointConfig, ClassificationConfig, DataConfig, Target
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.job.events import parse_event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.system.process_id import ProcessId, process_id
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.local import service as local_service
from nasflow.training_service.local import slots as slot_shares
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState, WorkerRecord
from tests.training_service.local.jobs import kill_worker, report

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


def make(root: Path, slots: int = 1, **options) -> LocalService:
    config = LocalServiceConfig(slots=slots, **{"idle_timeout": 60, **options})
    return LocalService(config, root, runner=SCRIPTED, preload=())


def workers(root: Path) -> dict[str, WorkerRecord]:
    state = LocalState(root)
    with state.lock():
        return {worker.slot: worker for worker in state.workers()}


def stop(root: Path, worker: ProcessId) -> None:
    """SIGSTOP, while the worker does not hold the lock, for which everyone would wait then."""
    with LocalState(root).lock():
        worker.send(signal.SIGSTOP)


class TestLocalService(TrainingServiceContract):
    factory = f"{__file__}:make"

    def lose(self, service, handle):
        kill_worker(service, handle)


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()


def test_one_worker_serves_one_job_after_the_other(root):
    service = make(root)
    first, second = report(service, "first"), report(service, "second")
    assert first["parent"] == second["parent"] == workers(root)["cpu-0"].process.pid
    assert first["pid"] != second["pid"]
    assert first["session"] == first["pid"]  # a session of its own: untouched by the terminal's Ctrl-C


def test_a_worker_whose_controllers_are_silent_ends_its_job_and_itself(root):
    options = LocalServiceConfig(slots=2, idle_timeout=60, abandoned_after=3.0)
    service = LocalService(options, root, runner=SCRIPTED, preload=())
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    await_status(service, handle, JobStatus.RUNNING)
    began = time.monotonic()
    while time.monotonic() - began < 4.0 or not numbers(service, "jobs/job/pids"):  # it sees that someone asks
        assert service.status(handle).status is JobStatus.RUNNING
        time.sleep(0.1)
    pids = numbers(service, "jobs/job/pids") + numbers(service, "jobs/job/runs")
    until(lambda: not list(root.glob("local/workers/*/worker.json")), "end of both workers")
    assert not any(process_id(pid) for pid in pids)
    assert service.fetch("trials/00000/epoch-1").exists()
    state = service.status(handle)
    assert (state.status, state.reason) == (JobStatus.LOST, "no controller has called for 3 s")


def test_a_worker_that_is_stopped_for_good_is_ended(root, monkeypatch):
    monkeypatch.setattr(local_service, "_STOPPED_LIMIT", 1.0)
    service = make(root)
    handle = service.submit(script("job", ["wait", "go"]))
    await_status(service, handle, JobStatus.RUNNING)
    until(lambda: numbers(service, "jobs/job/runs"), "job")
    stopped = workers(root)["cpu-0"].process.pid
    os.kill(stopped, signal.SIGSTOP)
    assert not service.status(handle).status.finished, "it may be continued"
    state = finish(service, handle)
    assert (state.status, not psutil.pid_exists(stopped)) == (JobStatus.LOST, True)
    (root / "go").touch()
    assert finish(service, service.submit(script("job", ["wait", "go"]))).exit_code == 0


def test_the_real_runner_trains_in_processes_that_find_torch_imported(root):
    data = DataConfig(target="nasflow.evaluator.data:DigitsRows", params={"batch_size": 256})
    architecture = {"depth": 1, "width0": 16, "activation": "relu", "dropout": 0.0}
    service = LocalService(LocalServiceConfig(slots=1), root)
    handles = [
        service.submit(
            JobSpec(
                job_id=f"job-{trial}",
                study="digits",
                space=Target(target="nasflow.space.ready:mlp"),
                evaluator=ClassificationConfig(data=data, epochs=2),
                data=data,
                checkpoint=CheckpointConfig(),
                data_seed=0,
                base_dir=root,
                members=[MemberSpec(trial=trial, architecture=architecture, seed=0)],
            )
        )
        for trial in range(2)
    ]
    for trial, handle in enumerate(handles):
        state = finish(service, handle, seconds=120)
        assert state.exit_code == 0, service.log_tail(handle)
        events = [parse_event(line) for line in service.events(handle)[0]]
        kinds = [event.kind for event in events if event.kind != "measured"]  # there is none if its costs are known
        assert kinds == ["started", "planned", "epoch", "epoch", "final", "ended"]
        assert service.fetch(f"trials/{trial:05d}/epoch-0002.safetensors").is_file()
    worker = psutil.Process(workers(root)["cpu-0"].process.pid)
    assert any("libtorch" in part.path for part in worker.memory_maps())
    threads = [file.read_text().strip() for file in Path(f"/proc/{worker.pid}/task").glob("*/comm")]
    assert len(threads) == 1, threads  # a process that has started threads can't fork safely


def test_cpu_slots_share_the_cores(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(slot_shares, "cpu_quota", lambda: float("inf"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    service = make(root, slots=4)
    assert service.slots() == ("cpu-0", "cpu-1", "cpu-2", "cpu-3")
    environment = report(service, "job")["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("3", "3")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert LocalService(LocalServiceConfig(), root).slots() == tuple(f"cpu-{i}" for i in range(6))
    assert LocalService(LocalServiceConfig(slots=100), root).slots()[-1] == "cpu-99"
    monkeypatch.setattr(slot_shares, "cpu_quota", lambda: 4.5)  # a container's
    assert LocalService(LocalServiceConfig(), root).slots() == ("cpu-0", "cpu-1")
    of_two = slot_shares.slot_environments(LocalServiceConfig(slots=2))
    assert of_two["cpu-1"]["OMP_NUM_THREADS"] == "2"


def test_gpu_slots_see_their_gpu_only(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(slot_shares, "cpu_quota", lambda: float("inf"))
    service = make(root, slots=None, gpus=[0, 3], slots_per_gpu=2)
    assert service.slots() == ("gpu-0.0", "gpu-0.1", "gpu-3.0", "gpu-3.1")
    steps = (["report", "report.json"], ["wait", "go"])
    handles = [service.submit(script(f"job-{i}", *steps)) for i in range(4)]
    slots = [await_status(service, handle, JobStatus.RUNNING).slot for handle in handles]
    (root / "go").touch()
    for handle, slot in zip(handles, slots, strict=True):
        finish(service, handle)
        environment = json.loads(service.fetch(f"jobs/{handle.job_id}/report.json").read_text())["environment"]
        assert environment["CUDA_VISIBLE_DEVICES"] == slot[4]
        assert environment["NASFLOW_GPU_SHARE"] == "0.5"
        assert environment["OMP_NUM_THREADS"] == "2"


def test_validate_names_a_root_that_can_not_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ServiceError, match="can't write below"):
        make(tmp_path / "file" / "root").validate()
    make(tmp_path / "new" / "root").validate()
    assert not (tmp_path / "new").exists()


def test_an_idle_worker_ends_itself_and_the_next_job_starts_another(root):
    service = make(root, idle_timeout=0.2)
    first = report(service, "first")
    until(lambda: process_id(first["parent"]) is None, "end of the idle worker")
    assert workers(root) == {}
    assert report(service, "second")["parent"] != first["parent"]


def test_sigterm_of_a_worker_loses_its_job_at_once(root):
    service = make(root)
    handle = service.submit(script("job", ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    os.kill(workers(root)["cpu-0"].process.pid, signal.SIGTERM)
    state = await_status(service, handle, JobStatus.LOST)
    assert "asked to end" in state.reason
    assert not any(process_id(pid) for pid in pids)


def test_a_job_dies_with_its_killed_worker_though_nobody_looks(root):
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    await_status(service, handle, JobStatus.RUNNING)
    (pid,) = until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    workers(root)["cpu-0"].process.send(signal.SIGKILL)
    until(lambda: process_id(pid) is None, "end of the job")


def test_prepare_reattaches_and_replaces_what_no_longer_fits(root):
    make(root, slots=2).prepare()
    until(lambda: len(list(root.glob("local/workers/*/ready"))) == 2, "ready workers")
    before = workers(root)
    make(root, slots=2).prepare()
    assert workers(root) == before
    wide = make(root, slots=2)
    handle = wide.submit(script("job", ["wait", "go"]))
    busy = await_status(wide, handle, JobStatus.RUNNING).slot
    narrow = make(root, slots=1, idle_timeout=59)
    narrow.prepare()
    idle = ({"cpu-0", "cpu-1"} - {busy}).pop()
    assert not before[idle].process.alive()
    assert workers(root)[busy] == before[busy]
    (root / "go").touch()
    assert finish(narrow, handle).exit_code == 0
    until(lambda: not before[busy].process.alive(), "end of the retired worker")
    assert report(narrow, "next")["parent"] == workers(root)["cpu-0"].process.pid
    assert set(workers(root)) == {"cpu-0"}


def test_a_reused_pid_is_never_touched(root):
    service = make(root)
    service.prepare()
    state = LocalState(root)
    record = workers(root)["cpu-0"]
    record.process.send(signal.SIGKILL)
    until(lambda: not record.process.alive(), "end of the worker")
    mine = record.model_copy(update={"process": record.process.model_copy(update={"pid": os.getpid()})})
    with state.lock():
        state.register(mine)  # as if this process had got the pid of the dead worker
    assert report(service, "job")["parent"] == workers(root)["cpu-0"].process.pid != os.getpid()


def test_a_worker_killed_between_claim_and_fork_loses_its_job(root):
    service = make(root)
    service.prepare()
    worker = workers(root)["cpu-0"].process
    until((root / "local/workers/cpu-0/ready").exists, "ready worker")
    stop(root, worker)
    state = LocalState(root)
    handle = service.submit(script("job"))
    with state.lock():
        assert state.claim("cpu-0") == "job"
    assert service.status(handle).status is JobStatus.RUNNING
    worker.send(signal.SIGKILL)
    assert await_status(service, handle, JobStatus.LOST).slot == "cpu-0"
    service.submit(script("job"))
    assert finish(service, handle).exit_code == 0


def test_a_worker_whose_environment_can_not_be_read_yet_is_ended(root):
    """Else the clean-up would wait for it, and it for the lock."""
    service = make(root)
    service.prepare()
    until((root / "local/workers/cpu-0/ready").exists, "ready worker")
    worker = workers(root)["cpu-0"]
    stop(root, worker.process)  # so that it does not see that it is dismissed
    with LocalState(root).lock():
        service._bury(worker.model_copy(update={"token": "carried by none"}))
    assert not worker.process.alive()


def test_what_can_not_be_ended_costs_its_slot_and_no_more(root, monkeypatch, caplog):
    """A process that hangs in the kernel outlives SIGKILL; here, none gets the signal."""
    monkeypatch.setattr(local_service, "KILLED_WITHIN", 0.5)
    monkeypatch.setattr(local_service, "_HUNG_EVERY", 0.0)
    service = make(root, slots=2)
    handle = service.submit(script("job", ["spawn", "session"], ["wait", "never"]))
    (hung,) = until(lambda: numbers(service, "jobs/job/pids"), "process of the job")
    slot = service.status(handle).slot
    (other,) = {"cpu-0", "cpu-1"} - {slot}
    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "send_signal", lambda *_: None)
        workers(root)[slot].process.send(signal.SIGKILL)
        assert await_status(service, handle, JobStatus.LOST).slot == slot
        again = make(root, slots=2)  # another controller
        again.prepare()
        assert again.free_slots() == (other,)
        waits = [again.submit(script(f"job-{i}", ["wait", "go"])) for i in range(2)]
        assert await_status(again, waits[0], JobStatus.RUNNING).slot == other
        remedy = f"SIGKILL has not ended process {hung}, which hangs in the kernel: mend the mount or the GPU that"
        assert f"slot {slot} takes no job: {remedy}" in again.status(waits[1]).reason
        assert remedy in caplog.text
        monkeypatch.setattr(local_service, "_HUNG_EVERY", 600.0)
        again.cleanup()
        assert process_id(hung)
    (root / "go").touch()
    assert finish(service, service.submit(script("job"))).exit_code == 0


def test_a_slot_is_back_when_what_hung_has_ended(root, monkeypatch):
    monkeypatch.setattr(local_service, "KILLED_WITHIN", 0.5)
    monkeypatch.setattr(local_service, "_HUNG_EVERY", 0.0)
    service = make(root)
    handle = service.submit(script("job", ["spawn", "session"], ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/pids"), "process of the job")
    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "send_signal", lambda *_: None)
        workers(root)["cpu-0"].process.send(signal.SIGKILL)
        await_status(service, handle, JobStatus.LOST)
        assert service.free_slots() == ()
    assert finish(service, service.submit(script("job"))).exit_code == 0


def test_a_dead_idle_worker_is_replaced_for_a_job_that_waits(root):
    service = make(root)
    service.prepare()
    worker = workers(root)["cpu-0"].process
    stop(root, worker)
    handle = service.submit(script("job"))
    worker.send(signal.SIGKILL)
    assert finish(service, handle).exit_code == 0


def test_cancel_ends_a_hung_worker(root, monkeypatch):
    monkeypatch.setattr("nasflow.training_service.local.service._WORKER_ANSWERS_WITHIN", 0.3)
    service = make(root)
    handle = service.submit(script("job", ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    stop(root, workers(root)["cpu-0"].process)
    service.cancel(handle)
    assert service.status(handle).status is JobStatus.CANCELLED
    assert not any(process_id(pid) for pid in pids)
    assert finish(service, service.submit(script("next"))).exit_code == 0


def test_a_runner_that_can_not_be_imported_says_so_in_the_job(root):
    service = LocalService(LocalServiceConfig(slots=1), root, runner="no_such_module:run", preload=())
    handle = service.submit(script("job"))
    state = finish(service, handle)
    assert state.exit_code == 1
    assert "there is no module 'no_such_module'" in state.reason


def test_a_worker_that_can_not_start_is_an_error_and_no_endless_loop(root):
    service = make(root)
    for layout in service._layouts.values():
        layout.command[-1:] = ["--no-such-option"]
    handle = JobHandle(service="local", job_id="job")

    def refused() -> bool:
        try:
            service.submit(script("job"))
            service.status(handle)
        except ServiceError as error:
            return "the worker of slot cpu-0 exits during startup" in str(error)
        return False

    until(refused, "refusal")
    assert "--no-such-option" in (root / "local/logs/cpu-0.log").read_text()
