"""Jobs on GPUs: which slots there are, which take a job, and which leave their GPU to others. nvidia-smi stands in."""

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from contextvars import ContextVar

import pytest

from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.system.process_id import process_id
from nasflow.testing.training_service import await_status, finish, numbers, script, until
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.local import active_gpus
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine import gpus
from tests.gpu_stand_ins import NO_DRIVER, NvidiaSmi

SEARCH = ContextVar("SEARCH", default="none")
NOWHERE = 2**22 + 4242  # no process gets such a pid


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes the machine one with that many GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(active_gpus, "_EVERY", 0.05)
    for module, name in ((active_gpus, "_OLD"), (gpus, "_SMI_ANSWERS_WITHIN"), (gpus, "_ANSWERS_WITHIN")):
        monkeypatch.setattr(module, name, 300.0)  # however slow the machine that runs the tests

    def make(count: int) -> NvidiaSmi:
        smi = NvidiaSmi(tmp_path / "bin", count)
        monkeypatch.setenv("PATH", f"{smi.folder}:{os.environ['PATH']}")
        return smi

    return make


@pytest.fixture
def open_service(tmp_path):
    """Makes services on one root."""

    def make(**options) -> LocalService:
        config = LocalServiceConfig(**{"use_active_gpu": False, "idle_timeout": 60, **options})
        service = LocalService(config, tmp_path / "root", "nasflow.testing.scripted_job:run_job_file", preload=())
        made.append(service)
        return service

    made: list[LocalService] = []
    yield make
    for service in made:
        service.cleanup()


@pytest.fixture
def stranger():
    """The pid of a process that has nothing to do with us."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process.pid
        process.kill()


def submit(service: LocalService, name: str, *steps: list) -> JobHandle:
    return service.submit(script(name, *steps, ["report", "report.json"], ["wait", "go"]))


def gpu_of(service: LocalService, handle: JobHandle) -> str:
    """What a job that runs sees of the machine's GPUs."""
    slot = await_status(service, handle, JobStatus.RUNNING).slot
    report = service.fetch(f"jobs/{handle.job_id}") / "report.json"
    environment = json.loads(until(lambda: report.exists() and report.read_text(), "report"))["environment"]
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert slot is not None and slot.startswith(f"gpu-{environment['CUDA_VISIBLE_DEVICES']}.")
    return environment["CUDA_VISIBLE_DEVICES"]


def await_free(service: LocalService, *slots: str) -> None:
    until(lambda: service.free_slots() == slots, f"free slots {slots}")


def readings(service: LocalService, count: int = 1) -> None:
    """Wait until so many readings that begin from now on have ended."""
    for _ in range(count):
        service._active.rest()
        before = service._active._reading
        until(lambda before=before: (service.free_slots(), service._active._reading is not before)[1], "reading")
    service._active.rest()


def go(service: LocalService, *handles: JobHandle) -> None:
    """Let the jobs end, well."""
    (service.fetch(".") / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * len(handles)


@pytest.mark.parametrize(
    ("count", "indices", "each"),
    [(1, [0], 1), (2, [0, 1], 1), (2, [0, 1], 2), (8, list(range(8)), 1), (8, [2, 5], 2)],
    ids=["1 of 1", "2 of 2", "2 jobs a GPU", "8 of 8", "2 of 8"],
)
def test_all_gpus_that_are_named_are_used_and_no_others(machine, open_service, count, indices, each):
    machine(count)
    service = open_service(gpus=indices, slots_per_gpu=each)
    service.validate()
    service.prepare()
    handles = [submit(service, f"job-{i}") for i in range(len(indices) * each + 1)]
    *running, waiting = handles
    seen = Counter(gpu_of(service, handle) for handle in running)
    assert seen == {str(index): each for index in indices}
    assert service.status(waiting).status is JobStatus.PENDING
    assert service.free_slots() == ()
    go(service, *handles)


def test_a_job_waits_while_others_compute_on_the_only_gpu(machine, open_service, stranger, caplog):
    caplog.set_level(logging.INFO, active_gpus.__name__)
    smi = machine(1)
    smi.use(0, stranger)
    service = open_service(gpus=[0])
    handle = submit(service, "job")
    in_use = f"GPU 0 is in use by others (process {stranger})"
    until(lambda: service.status(handle).reason == in_use, "reason for waiting")
    readings(service, 3)
    assert service.status(handle).status is JobStatus.PENDING
    assert service.free_slots() == ()
    assert [record.message for record in caplog.records] == [f"{in_use}: no new job starts there until this changes"]
    smi.use(0)
    assert gpu_of(service, handle) == "0"
    service._active.rest()
    assert caplog.messages[1:] == ["GPU 0 is no longer used by others"]
    go(service, handle)


def test_a_warning_has_the_context_of_the_search_that_asked(machine, open_service, stranger, caplog, monkeypatch):
    machine(1).use(0, stranger)
    SEARCH.set("this one")
    seen = []
    monkeypatch.setattr(caplog.handler, "filters", [lambda _: seen.append(SEARCH.get()) or True])
    readings(open_service(gpus=[0]))
    assert seen == ["this one"]


def test_jobs_go_to_the_gpus_that_others_do_not_use(machine, open_service, stranger):
    machine(2).use(0, stranger)
    service = open_service(gpus=[0, 1])
    service.prepare()
    await_free(service, "gpu-1.0")
    first, second = submit(service, "first"), submit(service, "second")
    assert gpu_of(service, first) == "1"
    assert service.status(second).status is JobStatus.PENDING
    go(service, first, second)
    assert service.status(second).slot == "gpu-1.0"


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_slot_with_several_gpus_waits_for_each_of_them(machine, open_service, stranger, used):
    smi = machine(2)
    for index in used:
        smi.use(index, stranger)
    service = open_service(gpus=[0, 1], devices_per_job=2)
    service.prepare()
    readings(service, 2)
    assert service.free_slots() == ()
    reasons = "; ".join(f"GPU {index} is in use by others (process {stranger})" for index in used)
    assert service._state.held() == {"gpu-0+1.0": reasons}
    for index in used:
        smi.use(index)
    await_free(service, "gpu-0+1.0")


def test_active_gpus_are_used_if_they_may_be(machine, open_service, stranger):
    machine(1).use(0, stranger)
    careful = open_service(gpus=[0])
    careful.prepare()
    careful._active.rest()
    assert careful.free_slots() == ()
    service = open_service(gpus=[0], use_active_gpu=True)
    handle = submit(service, "job")
    assert gpu_of(service, handle) == "0"
    go(service, handle)


def test_our_own_jobs_are_no_others(machine, open_service):
    """Not the job's process, nor a grandchild in a session of its own, nor a daemon that has left everything behind."""
    smi = machine(1)
    service = open_service(gpus=[0], slots_per_gpu=2)
    first = submit(service, "first", ["spawn", "session"], ["spawn", "daemon"])
    assert gpu_of(service, first) == "0"
    pids = numbers(service, "jobs/first/runs") + numbers(service, "jobs/first/pids")
    assert len(pids) == 3
    smi.use(0, *pids)
    readings(service)
    (free,) = service.free_slots()
    assert free != service.status(first).slot
    second = submit(service, "second")
    assert gpu_of(service, second) == "0"
    go(service, first, second)


def test_processes_of_another_pid_namespace(machine, open_service):
    """Ours, while one of our jobs runs on that GPU; else another's."""
    smi = machine(2)
    service = open_service(gpus=[0, 1], slots_per_gpu=2)
    service.prepare()
    handle = submit(service, "job")
    gpu = int(gpu_of(service, handle))
    smi.use(gpu, NOWHERE)
    smi.use(1 - gpu, NOWHERE + 1, None)
    until(lambda: [slot[:5] for slot in service.free_slots()] == [f"gpu-{gpu}"], "hold of the other GPU")
    assert set(service._state.held().values()) == {
        f"GPU {1 - gpu} is in use by others (process unknown, {NOWHERE + 1})"
    }
    go(service, handle)
    until(lambda: service.free_slots() == (), "hold of the GPU without a job")


def test_a_running_job_is_left_alone_when_others_come(machine, open_service, stranger):
    smi = machine(1)
    service = open_service(gpus=[0])
    handle = submit(service, "job")
    assert gpu_of(service, handle) == "0"
    smi.use(0, stranger)
    until(lambda: (service.free_slots(), service._state.held())[1], "hold")
    assert service.status(handle).status is JobStatus.RUNNING
    go(service, handle)
    assert numbers(service, "jobs/job/runs") and service.free_slots() == ()


def test_nobody_waits_for_nvidia_smi_but_the_jobs(machine, open_service, tmp_path):
    """Not until it has answered does a job start; meanwhile the service answers."""
    smi = machine(1)
    smi.hang(until=tmp_path / "answer")
    service = open_service(gpus=[0])
    service.prepare()
    until(lambda: list(tmp_path.glob("root/local/workers/*/ready")), "ready worker")
    handle = submit(service, "job")
    state = service.status(handle)
    assert (state.status, state.reason) == (JobStatus.PENDING, "GPU 0 is being checked")
    (tmp_path / "answer").touch()
    assert gpu_of(service, handle) == "0"
    go(service, handle)


def test_a_slot_that_is_held_after_its_worker_saw_a_job_gets_none(tmp_path):
    state = LocalState(tmp_path)
    state.claims("gpu-0.0").mkdir(parents=True)
    with state.lock():
        state.enqueue(script("job"))
        assert state.news("gpu-0.0")
        state.hold("gpu-0.0", "others are there")
        assert not state.news("gpu-0.0")
        assert state.claim("gpu-0.0") is None
        state.hold("gpu-0.0", "")
        assert state.claim("gpu-0.0") == "job"


def test_what_was_seen_long_ago_says_nothing(machine, open_service, tmp_path, monkeypatch):
    smi = machine(1)
    service = open_service(gpus=[0])
    service.prepare()
    await_free(service, "gpu-0.0")
    service._active.rest()
    smi.hang(until=tmp_path / "answer")
    monkeypatch.setattr(active_gpus, "_OLD", 0.0)
    assert service.free_slots() == ()
    (tmp_path / "answer").touch()


def test_a_driver_that_fails_stops_new_jobs_until_it_is_back(machine, open_service, caplog):
    smi = machine(2)
    service = open_service(gpus=[0, 1])
    service.prepare()
    await_free(service, "gpu-0.0", "gpu-1.0")
    smi.fail(NO_DRIVER)
    until(lambda: service.free_slots() == (), "hold")
    handle = submit(service, "job")
    assert "can't list the GPUs: NVIDIA-SMI has failed" in service.status(handle).reason
    service._active.rest()
    assert len(caplog.messages) == 1
    smi.fail(None)
    gpu_of(service, handle)
    go(service, handle)


def test_a_gpu_that_is_gone_takes_no_job(machine, open_service):
    machine(1)
    service = open_service(gpus=[0, 1])
    service.prepare()
    await_free(service, "gpu-0.0")
    assert service._state.held() == {"gpu-1.0": "GPU 1 is no longer there"}


def test_cleanup_ends_the_reading_and_leaves_no_hold(machine, open_service, stranger, tmp_path):
    machine(1).use(0, stranger)
    service = open_service(gpus=[0])
    service.prepare()
    service.cleanup()
    assert not service._active._reading.is_alive()
    assert not (tmp_path / "root" / "local").exists()
    assert process_id(stranger)


def test_free_slots_are_those_that_would_take_one_more_job(tmp_path):
    """On the CPU: no worker, an idle one, one at work, and jobs that wait for it."""
    runner = "nasflow.testing.scripted_job:run_job_file"
    service = LocalService(LocalServiceConfig(slots=2), tmp_path / "root", runner, preload=())
    try:
        assert service.free_slots() == ("cpu-0", "cpu-1")
        first = submit(service, "first")
        assert len(service.free_slots()) == 1
        busy = await_status(service, first, JobStatus.RUNNING).slot
        assert service.free_slots() == tuple({"cpu-0", "cpu-1"} - {busy})
        rest = [submit(service, f"job-{i}") for i in range(2)]
        assert service.free_slots() == ()
        go(service, first, *rest)
        assert service.free_slots() == ("cpu-0", "cpu-1")
    finally:
        service.cleanup()


def test_validate_names_a_gpu_that_is_not_there(machine, open_service):
    smi = machine(2)
    open_service(gpus=[0, 1]).validate()
    with pytest.raises(ServiceError, match=r"training_service\.gpus: there is no GPU 2, this machine has 2;"):
        open_service(gpus=[0, 2]).validate()
    with pytest.raises(ServiceError, match="names a GPU twice"):
        open_service(gpus=[1, 1]).validate()
    smi.fail("no driver")
    with pytest.raises(ServiceError, match="can't list the GPUs: no driver"):
        open_service(gpus=[0]).validate()
