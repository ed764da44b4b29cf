"""The debug service keeps the contract of services without processes, and is good for debugging."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nasflow.config.search import CheckpointConfig, ClassificationConfig, DataConfig, Target
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.job.events import parse_event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.testing.in_process_service import InProcessServiceContract
from nasflow.testing.service_jobs import epochs, finish, numbers, script, until
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.debug import DebugService

ENDLESS = 10_000  # epochs


def make(root: Path, slots: int = 1) -> DebugService:
    """It has one slot, however many are asked for."""
    return DebugService(DebugServiceConfig(), root, runner="nasflow.testing.scripted_job:run_job_file")


class TestDebugService(InProcessServiceContract):
    factory = f"{__file__}:make"


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "root"


def test_jobs_run_in_this_process_in_the_call_of_status_and_in_order(root):
    service = make(root)
    handles = [service.submit(script(f"job-{i}", ["report", "report.json"])) for i in range(3)]
    assert [handle.job_id for handle in service.list()] == ["job-0", "job-1", "job-2"]
    assert numbers(service, "jobs/job-0/runs") == []
    assert service.status(handles[1]).status is JobStatus.EXITED
    assert json.loads(service.fetch("jobs/job-1/report.json").read_text())["pid"] == os.getpid()
    assert [numbers(service, f"jobs/job-{i}/runs") for i in range(3)] == [[os.getpid()], [os.getpid()], []]
    assert list(service.list()) == [handles[2]]


def test_other_threads_see_it_run_and_cancel_waits(root):
    service = make(root)
    first, second = (service.submit(script(name, ["epoch", 1], ["wait", "go"])) for name in ("first", "second"))
    runs = threading.Thread(target=service.status, args=(first,))
    runs.start()
    until(lambda: epochs(service, first), "first epoch")
    assert service.status(first).status is JobStatus.RUNNING
    assert service.status(second).status is JobStatus.PENDING
    assert list(service.list()) == [first, second]
    service.cancel(second)
    assert service.status(second).status is JobStatus.CANCELLED
    cancels = threading.Thread(target=service.cancel, args=(first,))
    cancels.start()
    cancels.join(0.1)
    assert cancels.is_alive()
    (root / "go").touch()
    cancels.join(10)
    assert not cancels.is_alive()
    assert service.status(first).status is JobStatus.EXITED
    runs.join()
    assert numbers(service, "jobs/second/runs") == []
    service.submit(script("second"))
    assert finish(service, second).exit_code == 0


def test_sys_exit_ends_the_job_only(root):
    (root / "jobs").mkdir(parents=True)
    service = DebugService(DebugServiceConfig(), root, runner="sys:exit")
    state = service.status(service.submit(script("job")))
    assert (state.status, state.exit_code) == (JobStatus.EXITED, 1)
    assert state.reason.startswith("SystemExit: ")


def test_an_interrupted_job_is_lost_and_goes_on_when_submitted_again(root, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    service = make(root)
    spec = script("job", ["epoch", 1], ["print", "here"], ["epoch", 2])
    handle = service.submit(spec)
    with monkeypatch.context() as patch:
        patch.setattr("nasflow.testing.scripted_job.step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.status(handle)
    assert (service.status(handle).status, service.status(handle).reason) == (JobStatus.LOST, "it was interrupted")
    assert list(service.list()) == []
    service.submit(spec)
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]


def test_a_job_whose_controller_was_killed_is_lost_and_one_that_waited_waits(root):
    """In another process; this one opens the service after it."""
    lost, waits = script("lost", ["epoch", 1], ["signal", 9]), script("waits", ["epoch", 1])
    program = (
        "import sys; from pathlib import Path; from nasflow.load_target import load_target\n"
        "from nasflow.job.spec import JobSpec\n"
        "service = load_target(sys.argv[1], Path())(Path(sys.argv[2]))\n"
        "first, _ = [service.submit(JobSpec.model_validate_json(text)) for text in sys.argv[3:]]\n"
        "service.status(first)"
    )
    specs = [spec.model_dump_json() for spec in (lost, waits)]
    command = [sys.executable, "-c", program, f"{__file__}:make", str(root), *specs]
    assert subprocess.run(command, check=False).returncode == -9
    service = make(root)
    assert service.status(JobHandle(service="debug", job_id="lost")).status is JobStatus.LOST
    assert [handle.job_id for handle in service.list()] == ["waits"]
    handle = service.submit(script("lost", ["epoch", 1], ["epoch", 2]))
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]


def test_a_breakpoint_can_be_talked_to(root):
    """The debugger's prompt is on the screen, its input is the terminal's; the log has what was printed."""
    program = (
        "import sys; from pathlib import Path\n"
        "from nasflow.config.services.debug import DebugServiceConfig\n"
        "from nasflow.testing.service_jobs import script\n"
        "from nasflow.training_service.debug import DebugService\n"
        "def run(path):\n"
        "    answer = 42\n"
        "    breakpoint()\n"
        "    print('went on')\n"
        "    return 0\n"
        "service = DebugService(DebugServiceConfig(), Path(sys.argv[1]), runner='__main__:run')\n"
        "print(service.status(service.submit(script('job'))).exit_code)\n"
    )
    command = [sys.executable, "-c", program, str(root)]
    talk = subprocess.run(command, input="p answer * 1000\ncontinue\n", capture_output=True, text=True, check=False)
    assert talk.returncode == 0, talk.stderr
    assert "42000" in talk.stdout
    assert talk.stdout.splitlines()[-2:] == ["(Pdb) went on", "0"]
    assert (root / "jobs/job/job.log").read_text().endswith("went on\n")


def test_other_threads_can_print_while_jobs_begin_and_end(root):
    """Jobs put their own streams in place of the process's and take them back: under the feet of who prints then."""
    program = (
        "import sys, threading, torch; from pathlib import Path\n"
        "from nasflow.training_service.debug_run import run_here\n"
        "def prints():\n"
        "    while not over.is_set():\n"
        "        print('from a thread', end='!\\n')\n"
        "over, folder = threading.Event(), Path(sys.argv[1])\n"
        "sys.setswitchinterval(1e-6)\n"
        "threads = [threading.Thread(target=prints) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[run_here('builtins:bool', folder) for _ in range(100)]\n"
        "over.set()\n"
        "[thread.join() for thread in threads]\n"
    )
    root.mkdir()
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("Exception in thread")) == (0, 0), done.stderr[-1000:]
    assert set(done.stdout.replace("!", "").split("\n")) >= {"from a thread"}


def perceptron(root: Path, epochs: int) -> JobSpec:
    """A job that trains one trial."""
    data = DataConfig(target="nasflow.evaluator.data:DigitsRows", params={"batch_size": 256})
    return JobSpec(
        job_id="job",
        study="digits",
        space=Target(target="nasflow.space.ready:mlp"),
        evaluator=ClassificationConfig(data=data, epochs=epochs),
        data=data,
        checkpoint=CheckpointConfig(),
        data_seed=0,
        base_dir=root.parent,
        members=[
            MemberSpec(trial=0, architecture={"depth": 1, "width0": 16, "activation": "relu", "dropout": 0.0}, seed=0)
        ],
    )


def test_the_real_runner_trains_here(root):
    spec = perceptron(root, 2)
    service = DebugService(DebugServiceConfig(), root)
    handle = service.submit(spec)
    state = service.status(handle)
    assert state.exit_code == 0, service.log_tail(handle)
    events = [parse_event(line) for line in service.events(handle)[0]]
    kinds = [event.kind for event in events if event.kind != "measured"]  # there is none if its costs are known
    assert kinds == ["started", "planned", "epoch", "epoch", "final", "ended"]
    assert service.fetch("trials/00000/epoch-0002.safetensors").is_file()


def test_a_running_job_that_is_cancelled_ends_at_its_next_batch_and_goes_on_when_submitted_again(root):
    service = DebugService(DebugServiceConfig(), root)
    handle = service.submit(perceptron(root, ENDLESS))
    runs = threading.Thread(target=service.status, args=(handle,), daemon=True)
    runs.start()
    until(lambda: epochs(service, handle), "first epoch")
    service.cancel(handle)
    assert service.status(handle).status is JobStatus.CANCELLED
    runs.join()
    trained = len(epochs(service, handle))
    ended = parse_event(service.events(handle)[0][-1])
    assert (ended.kind, ended.infrastructure) == ("ended", True)
    assert "the job was asked to end" in ended.error
    service.submit(perceptron(root, trained + 1))
    assert finish(service, handle).exit_code == 0
    again = [(epoch, True) for epoch in range(1, trained + 1)]
    assert epochs(service, handle)[trained:] == [*again, (trained + 1, False)]


def test_a_clean_up_begins_no_job_that_waits(root):
    service = DebugService(DebugServiceConfig(), root)
    running, waiting = (
        service.submit(perceptron(root, ENDLESS).model_copy(update={"job_id": name})) for name in ("running", "waiting")
    )
    runs = threading.Thread(target=service.status, args=(waiting,), daemon=True)  # which runs the first job first
    runs.start()
    until(lambda: epochs(service, running), "first epoch")
    service.cleanup()
    runs.join()
    assert [service.status(each).status for each in (running, waiting)] == [JobStatus.CANCELLED] * 2
    assert service.events(waiting) == ([], 0)


def test_jobs_of_two_services_in_one_process_run_one_after_the_other(tmp_path):
    """What a job changes belongs to the process: its output, the random generators, the record of its activity."""
    services = [make(tmp_path / name) for name in ("first", "second")]
    first, second = services
    handles = [service.submit(script("job", ["epoch", 1], ["wait", "go"])) for service in services]
    streams = sys.stdout, sys.stderr
    runs = threading.Thread(target=first.status, args=handles[:1], daemon=True)
    runs.start()
    until(lambda: epochs(first, handles[0]), "first epoch")
    (tmp_path / "second" / "go").touch()
    assert second.status(handles[1]).status is JobStatus.PENDING
    second.cancel(handles[1])  # does not wait for the other service's job
    assert runs.is_alive()
    second.submit(script("job", ["epoch", 1]))
    (tmp_path / "first" / "go").touch()
    runs.join()
    assert [finish(*each).exit_code for each in zip(services, handles, strict=True)] == [0, 0]
    assert (sys.stdout, sys.stderr) == streams
