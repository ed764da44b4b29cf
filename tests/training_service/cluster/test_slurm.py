"""The Slurm service keeps the contract, and its own promises, on a real Slurm."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nasflow.attempt.verdict import judge
from nasflow.config.job_secrets import JobSecrets
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.errors import ServiceError
from nasflow.system.process_id import process_id
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    epochs,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.cluster import base
from nasflow.training_service.cluster import slurm as slurm_service
from nasflow.training_service.cluster.runs import ClusterRecords
from nasflow.training_service.cluster.slurm import SlurmService, _seen

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
pytestmark = pytest.mark.usefixtures("slurm")

_KILLED_CONTROLLER = """
import sys
from pathlib import Path
from nasflow.load_target import load_target
from nasflow.job.spec import JobSpec
load_target(sys.argv[1], Path())(Path(sys.argv[2]), 1).submit(JobSpec.model_validate_json(sys.argv[3]))
"""


def make(root: Path, slots: int = 1, **options) -> SlurmService:
    return SlurmService(SlurmServiceConfig(max_jobs=slots, poll_seconds=0.3, **options), root, runner=SCRIPTED)


def slurm_job(slurm, handle: JobHandle) -> str:
    """Slurm's id of a job that it has."""
    lines = slurm.call("squeue", "--noheader", "--format=%i %j").splitlines()
    return next(line.split()[0] for line in lines if f"-{handle.job_id}-" in line)


def report(service: SlurmService, job_id: str = "job") -> dict:
    handle = service.submit(script(job_id, ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    return json.loads(service.fetch(f"jobs/{job_id}/report.json").read_text())


def in_place_of(command: str, folder: Path, *lines: str) -> str:
    """Put a shell script before one of Slurm's commands, and return the PATH."""
    shim = folder / "bin" / command
    shim.parent.mkdir(exist_ok=True)
    shim.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    shim.chmod(0o755)
    return f"{shim.parent}:{os.environ['PATH']}"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    make(folder).cleanup()


@pytest.mark.long
class TestSlurmService(TrainingServiceContract):
    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, slurm):
        self.slurm = slurm

    def lose(self, service, handle):
        """Its node fails, and comes back when Slurm has given the job up."""
        number = slurm_job(self.slurm, handle)
        node = self.slurm.call("squeue", "--noheader", f"--jobs={number}", "--format=%N").strip()
        self.slurm.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        while number in self.slurm.call("squeue", "--noheader", "--format=%i").split():
            time.sleep(0.1)
        self.slurm.call("scontrol", "update", f"nodename={node}", "state=resume")


def test_more_nodes_than_there_are_are_refused_at_the_start(root):
    config = SlurmServiceConfig(max_jobs=1)
    SlurmService(config.with_most_nodes(3), root).validate()
    with pytest.raises(ServiceError, match=r"Slurm refuses such jobs.*node"):
        SlurmService(config.with_most_nodes(9), root).validate()


def test_the_environment_of_jobs(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("INHERITED", "yes")
    service = make(root, cpus_per_job=2, env_setup="export MINE='a b'\nset_up() { export ALSO=1; }\nset_up")
    environment = report(service)["environment"]
    assert "/nowhere" not in environment["PYTHONPATH"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert (environment["INHERITED"], environment["MINE"], environment["ALSO"]) == ("yes", "a b", "1")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["SLURM_JOB_ID"] != "77"
    assert environment["SLURM_CPUS_PER_TASK"] == "2"


def test_jobs_inherit_no_secrets(root, monkeypatch):
    for name in ("STUDIES", "PGPASSWORD", "PREFECT_API_AUTH_STRING", "KEPT"):
        monkeypatch.setenv(name, "hush")
    config = SlurmServiceConfig(max_jobs=1, poll_seconds=0.2, pass_env=["PGPASSWORD"])
    service = SlurmService(config, root, runner=SCRIPTED, secrets=JobSecrets(withheld=frozenset({"STUDIES"})))
    environment = report(service)["environment"]
    assert {name for name, value in environment.items() if value == "hush"} == {"PGPASSWORD", "KEPT"}


def test_a_job_gets_the_gpus_it_asks_for(root):
    service = make(root, slots=4, gpus_per_job=1)
    handles = [service.submit(script(f"job-{i}", ["report", "report.json"], ["wait", "go"])) for i in range(4)]
    for handle in handles[:3]:
        await_status(service, handle, JobStatus.RUNNING)
    state = until(lambda: s if "waits: " in (s := service.status(handles[3])).reason else None, "reason for waiting")
    assert state.status is JobStatus.PENDING  # there are three GPUs
    assert "Resources" in state.reason or "Priority" in state.reason
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 4
    assert json.loads((root / "jobs/job-3/report.json").read_text())["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("after", [True, False], ids=["taken", "on-its-way"])
def test_a_controller_killed_at_submitting_submits_once(root, tmp_path, monkeypatch, after):
    """Killed when Slurm has taken the job, and when the next controller submits it before Slurm hears of the first."""
    monkeypatch.setenv("REAL", shutil.which("sbatch"))
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    go = tmp_path / "late"
    kill, call = "kill -9 $PPID", f'while ! [ {int(after)} = 1 -o -e {go} ]; do sleep 0.05; done; $REAL "$@"'
    shim.write_text("#!/bin/sh\n" + "\n".join([call, kill] if after else [kill, call]) + f"\ntouch {tmp_path}/done\n")
    shim.chmod(0o755)
    spec = script("once", ["wait", "go"])
    program = [sys.executable, "-c", _KILLED_CONTROLLER, f"{__file__}:make", str(root), spec.model_dump_json()]
    killed = subprocess.run(
        program, env=os.environ | {"PATH": f"{shim.parent}:{os.environ['PATH']}"}, check=False, capture_output=True
    )
    assert killed.returncode == -9
    service = make(root)
    service.prepare()
    handle = service.submit(spec)
    go.touch()
    until((tmp_path / "done").exists, "the first sbatch")
    await_status(service, handle, JobStatus.RUNNING)
    assert len(list((root / "jobs/once/run").glob("*.sh"))) == 1
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert len(numbers(service, "jobs/once/runs")) == 1


def test_a_job_whose_controllers_are_silent_ends_itself(root):
    service = make(root, abandoned_after=2.0)
    handle = service.submit(script("job", ["ignore", int(signal.SIGTERM)], ["wait", "never"]))
    began = time.monotonic()
    while time.monotonic() - began < 3.0 or not numbers(service, "jobs/job/runs"):
        assert not service.status(handle).status.finished, "it sees that a controller calls"
        time.sleep(0.1)
    until(lambda: list((root / "jobs/job/run").glob("*.exit.json")), "end of the abandoned job")
    state = finish(service, handle)
    assert (state.status, state.reason) == (JobStatus.LOST, "no controller has called for 2 s")


def test_what_ends_a_job_from_outside_loses_it(root, slurm):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    slurm.call("scancel", slurm_job(slurm, handle))
    state = await_status(service, handle, JobStatus.LOST)
    assert "it was cancelled there" in state.reason
    assert not any(process_id(pid) for pid in pids)


def test_a_job_whose_program_is_killed_on_its_node_is_lost(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.5)
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    (pid,) = until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    psutil.Process(pid).parent().kill()
    state = await_status(service, handle, JobStatus.LOST)
    assert "ended on n" in state.reason
    assert process_id(pid) is None


def test_slurm_ended_a_job_for_want_of_memory(root, monkeypatch, tmp_path):
    """Its program is killed, and Slurm's word for that is as on a cluster with cgroups, which this one lacks."""
    service = make(root, memory_gb=0.2)
    handle = service.submit(script("job", ["wait", "never"]))
    (pid,) = until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    changed = f"{shutil.which('squeue')} \"$@\" | sed 's/|FAILED|/|OUT_OF_MEMORY|/'"
    monkeypatch.setenv("PATH", in_place_of("squeue", tmp_path, changed))
    psutil.Process(pid).parent().kill()
    state = finish(service, handle)
    assert (state.status, state.signal, state.oom_kills) == (JobStatus.EXITED, 9, 1)
    assert "ran out of memory" in state.reason
    assert judge(state, None).out_of_memory


def test_slurms_controller_may_be_away(root, slurm):
    """What runs goes on and its end is seen; what waits begins when it is back."""
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    slurm.stop_daemon("slurmctld")
    try:
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
        with pytest.raises(ServiceError, match=r"Slurm does not answer: .*nable to contact slurm controller"):
            service.validate()
        (root / "go").touch()
        assert finish(service, handle).exit_code == 0
        waiting = service.submit(script("next"))
        assert service.status(waiting).status is JobStatus.PENDING
    finally:
        slurm.start_controller()
    assert finish(service, waiting, seconds=60).exit_code == 0


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("squeue", "slurm_load_jobs error: Slurm backup controller in standby mode"),
        ("squeue", "slurm_load_jobs error: a sentence that nobody knows"),
        ("squeue", None),
        ("sbatch", "sbatch: error: Batch job submission failed: Message receive failure"),
        ("sbatch", "sbatch: error: Batch job submission failed: Protocol authentication error"),
    ],
)
def test_a_command_that_fails_for_now_ends_no_search(root, monkeypatch, caplog, command, text):
    """Also one that the system can't start."""
    service = make(root)
    service.validate()
    with monkeypatch.context() as patch:
        if text is None:
            patch.setenv("TOO_LONG", 2**20 * "x")
        else:
            patch.setenv("PATH", in_place_of(command, root.parent, f"echo '{text}' >&2", "exit 1"))
        service.prepare()
        handle = service.submit(script("job"))
        assert service.status(handle).status is JobStatus.PENDING
    assert (text or "squeue can't be started") in caplog.text
    assert finish(service, handle).exit_code == 0


def test_many_jobs_are_ended_by_force_at_once(root, monkeypatch):
    monkeypatch.setattr(slurm_service, "_AT_ONCE", 2)
    service = make(root, slots=3)
    handles = [service.submit(script(f"job-{i}", ["wait", "never"])) for i in range(3)]
    for handle in handles:
        until(lambda handle=handle: numbers(service, f"jobs/{handle.job_id}/runs"), "start of the job")
    service._withdraw([*service._look(), "one-that-slurm-does-not-know"])
    for handle in handles:
        await_status(service, handle, JobStatus.LOST)


def test_jobs_that_can_not_begin_are_an_error_in_the_end(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root, python="/no/such/python")
    with pytest.raises(
        ServiceError, match=r"3 jobs in a row ended on their nodes before nasflow began there; .*job\.log"
    ):
        for _ in range(4):
            state = finish(service, service.submit(script("job")))
            assert (state.status, "FAILED" in state.reason) == (JobStatus.LOST, True)
    assert "/no/such/python" in (root / "jobs/job/job.log").read_text()


def test_validate_says_what_is_wrong(root, monkeypatch, tmp_path):
    make(root, slots=4, partition="main", time_limit=5, memory_gb=0.5, gpus_per_job=1).validate()
    with pytest.raises(ServiceError, match=r"partition: Slurm has no partition 'fast', but closed, main$"):
        make(root, partition="fast").validate()
    with pytest.raises(ServiceError, match=r"Slurm refuses such jobs: .*generic resource"):
        make(root, options=["--gres=fpga:1"]).validate()
    with pytest.raises(ServiceError, match=r"Slurm refuses such jobs: .*Requested node configuration is not available"):
        make(root, cpus_per_job=64).validate()
    assert not root.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match="there is no 'sbatch' here; run the search where Slurm's commands are"):
        make(root).validate()


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("PENDING", JobStatus.PENDING, "waits: why"),
        ("COMPLETING", JobStatus.RUNNING, ""),
        ("SUSPENDED", JobStatus.RUNNING, ""),
        ("COMPLETED", JobStatus.EXITED, "COMPLETED"),
        ("FAILED", JobStatus.EXITED, "FAILED"),
        ("TIMEOUT", JobStatus.LOST, "training_service.time_limit"),
        ("PREEMPTED", JobStatus.LOST, "another job took its place"),
        ("NODE_FAIL", JobStatus.LOST, "its node failed"),
        ("BOOT_FAIL", JobStatus.LOST, "did not start"),
        ("DEADLINE", JobStatus.LOST, "deadline"),
    ],
)
def test_states_of_slurm(state, status, reason):
    seen = _seen("7", state, "why", "n1")
    assert (seen.status, seen.overtime) == (status, state == "TIMEOUT")
    assert reason in seen.reason


def test_a_run_that_another_replaced_ends_itself(root):
    """As on a node that was cut off when its job was given to another one."""
    service = make(root)
    handle = service.submit(script("job", ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    records = ClusterRecords(root, "slurm")
    with records.lock():
        records.new_run("job")
    until(lambda: not any(process_id(pid) for pid in pids), "end of the replaced run")
    service.cancel(handle)


def test_what_the_user_has_set_for_slurms_commands_hides_no_job(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    for command in ("SQUEUE", "SCANCEL", "SINFO"):
        monkeypatch.setenv(f"{command}_PARTITION", "closed")
    monkeypatch.setenv("SBATCH_WAIT", "1")
    monkeypatch.setenv("SBATCH_COMMENT", "mine")
    service = make(root)
    handle = service.submit(script("job", ["report", "report.json"], ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    for _ in range(3):
        time.sleep(0.1)
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    assert environment["SBATCH_COMMENT"] == "mine"
    service._withdraw(list(service._look()))
    assert await_status(service, handle, JobStatus.LOST).reason


def test_a_limit_on_the_number_of_jobs_ends_no_search_that_has_begun(root, monkeypatch, caplog):
    """Nor does it keep one from going on whose jobs are why it is reached."""
    why = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    said = f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {why}"
    full = in_place_of("sbatch", root.parent, f'echo "{said}" >&2', "exit 1")
    service = make(root, slots=2)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", full)
        with pytest.raises(ServiceError, match=r"Slurm refuses such jobs: .*QOSMaxSubmitJobPerUserLimit"):
            service.submit(script("job"))
        with pytest.raises(ServiceError, match=r"Slurm refuses such jobs: .*QOSMaxSubmitJobPerUserLimit"):
            make(root).validate()
    service.prepare()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", full)
        make(root).validate()
        waiting = service.submit(script("next"))
        time.sleep(0.5)
        service.prepare()
        assert service.status(waiting).status is JobStatus.PENDING
    assert caplog.text.count("Slurm takes no more jobs for now") == 1
    assert finish(service, waiting).exit_code == 0


def test_jobs_in_a_hidden_partition_are_seen(root, monkeypatch):
    """Slurm tells of them only who asks for all, unless that is an operator, as the user of this Slurm."""
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    hidden = f'case "$*" in *--all*) exec {shutil.which("squeue")} "$@";; esac'
    monkeypatch.setenv("PATH", in_place_of("squeue", root.parent, hidden))
    service = make(root)
    handle = service.submit(script("job", ["wait", "go"]))
    for _ in range(3):
        time.sleep(0.1)
        service.prepare()
        assert not service.status(handle).status.finished
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
