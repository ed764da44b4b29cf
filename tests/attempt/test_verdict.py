"""Whom to blame: the table of verdicts, what the kernel's files say, and real ends told apart."""

import itertools
import os
import signal
from pathlib import Path

import psutil
import pytest

from nasflow.attempt.verdict import judge, lacks_memory
from nasflow.config.limits import LimitsConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.job.events import Ended
from nasflow.job.spec import DEVICE_FAULT
from nasflow.study.records import AttemptState
from nasflow.system import memory
from nasflow.testing.training_service import finish, numbers, script, until
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState
from nasflow.trial import FailureKind
from tests.memory_limit import memory_limit

MIB, GIB = 2**20, 2**30
TRIAL, INFRASTRUCTURE = FailureKind.TRIAL, FailureKind.INFRASTRUCTURE
SUCCEEDED, FAILED, CANCELLED = AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.CANCELLED


def exited(**evidence) -> JobState:
    return JobState(status=JobStatus.EXITED, **evidence)


def killed(**evidence) -> JobState:
    return exited(signal=signal.SIGKILL, **evidence)


@pytest.mark.parametrize(
    ("state", "ended", "evicted", "verdict", "words"),
    [
        (exited(exit_code=0), Ended(), False, (SUCCEEDED, None, False), None),
        (exited(exit_code=0), Ended(), True, (FAILED, TRIAL, False), None),
        (exited(exit_code=1), Ended(error="no such data"), False, (FAILED, TRIAL, False), "no such data"),
        (killed(oom_kills=1), Ended(), False, (SUCCEEDED, None, False), None),
        (exited(exit_code=3), None, False, (FAILED, TRIAL, False), "exited with code 3 before its end\nlast words"),
        (exited(exit_code=DEVICE_FAULT), None, False, (FAILED, TRIAL, False), "could not be used any more"),
        (exited(signal=signal.SIGSEGV), None, False, (FAILED, TRIAL, False), "crashed with SIGSEGV"),
        (exited(signal=signal.SIGABRT, oom_kills=1), None, False, (FAILED, TRIAL, False), "crashed with SIGABRT"),
        (exited(signal=40), None, False, (FAILED, INFRASTRUCTURE, False), "ended by signal 40"),
        (exited(signal=2**40), None, False, (FAILED, INFRASTRUCTURE, False), "ended by signal 1099511627776"),
        (exited(signal=signal.SIGTERM), None, False, (FAILED, INFRASTRUCTURE, False), "ended by SIGTERM"),
        (killed(), None, False, (FAILED, INFRASTRUCTURE, False), "was ended by SIGKILL"),
        (killed(oom_kills=0), None, False, (FAILED, INFRASTRUCTURE, False), "SIGKILL, not for want of memory"),
        (killed(oom_kills=1), None, False, (FAILED, TRIAL, True), "ended the job's process for want of memory"),
        (
            killed(oom_kills=2, peak_rss=3 * GIB, memory_share=4 * GIB),
            None,
            False,
            (FAILED, TRIAL, True),
            "for want of memory\nit held 3.00 GiB, its slot's share is 4.00 GiB",
        ),
        (
            killed(oom_kills=1, peak_rss=GIB, memory_share=4 * GIB),
            None,
            False,
            (FAILED, INFRASTRUCTURE, False),
            "for want of memory that others had taken\nit held 1.00 GiB",
        ),
        (JobState(status=JobStatus.CANCELLED), None, False, (CANCELLED, INFRASTRUCTURE, False), "was cancelled"),
        (
            JobState(status=JobStatus.LOST, reason="host gone"),
            None,
            False,
            (FAILED, INFRASTRUCTURE, False),
            "host gone",
        ),
        (
            JobState(status=JobStatus.LOST, limit="job", reason="the cluster's time limit"),
            None,
            False,
            (FAILED, INFRASTRUCTURE, False),
            "the cluster's time limit",
        ),
    ],
)
def test_verdicts(state, ended, evicted, verdict, words):
    found = judge(state, ended, evicted, "last words")
    assert (found.state, found.failure, found.out_of_memory) == verdict
    assert found.error is None if words is None else words in found.error


# --- the kernel's files ------------------------------------------------------------------------------------------


def machine(folder: Path, cgroup: str, mountinfo: str, **files: str) -> Path:
    """A /proc, and cgroups beside it."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **files}.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.format(cgroups=folder / "cgroup"))
    return folder / "proc"


V2 = "0::/user/job\n", "29 23 0:26 / {cgroups} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "4:cpu,memory:/docker/abc\n1:name=systemd:/\n0::/\n",
    "35 31 0:32 /docker/abc {cgroups}/memory ro - cgroup cgroup rw,memory\n"
    "29 23 0:26 / {cgroups}/unified rw - cgroup2 none rw\n",
)


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n  File ...", True),
        ("MemoryError: \n  File ...", True),
        ("the kernel ended the job's process for want of memory\nit held 3.10 GiB", True),
        ("the kernel ended the job's process for want of memory that others had taken\nit held 0.10 GiB", False),
        ("the job's process was ended by SIGKILL, not for want of memory", False),
        ("RuntimeError: no\nOutOfMemoryError: CUDA out of memory", False),
        ("", False),
        (None, False),
    ],
)
def test_errors_of_trials_that_lack_memory(error, lacking):
    assert lacks_memory(error) is lacking


def test_cgroup_v2(tmp_path):
    files = {
        "cgroup/user/job/memory.events": "low 0\noom 7\noom_kill 3\noom_group_kill 1\n",
        "cgroup/user/job/memory.max": "max\n",
        "cgroup/user/memory.max": str(64 * MIB),
    }
    proc = machine(tmp_path, *V2, **files)
    assert memory.memory_groups(proc) == [tmp_path / "cgroup/user/job", tmp_path / "cgroup/user", tmp_path / "cgroup"]
    assert memory.oom_kills(proc) == 3
    assert memory.memory_limit(proc) == 64 * MIB
    assert memory.available_memory(proc) > 64 * MIB  # nothing says how much is used


def test_what_a_limited_cgroup_still_has(tmp_path):
    """What the kernel keeps of files can be had, too; the smallest rest of all groups counts."""
    files = {
        "cgroup/user/job/memory.max": str(64 * MIB),
        "cgroup/user/job/memory.current": str(60 * MIB),
        "cgroup/user/job/memory.stat": f"anon {10 * MIB}\ninactive_file {50 * MIB}\n",
        "cgroup/user/memory.max": str(80 * MIB),
        "cgroup/user/memory.current": str(70 * MIB),
    }
    assert memory.available_memory(machine(tmp_path, *V2, **files)) == 10 * MIB


def test_what_a_limited_cgroup_v1_still_has(tmp_path):
    files = {
        "cgroup/memory/memory.limit_in_bytes": str(32 * MIB),
        "cgroup/memory/memory.usage_in_bytes": str(30 * MIB),
        "cgroup/memory/memory.stat": f"total_inactive_file {MIB}\n",
    }
    assert memory.available_memory(machine(tmp_path, *V1, **files)) == 3 * MIB


def test_cgroup_v1_of_a_container_that_sees_its_own_only(tmp_path):
    files = {
        "cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "cgroup/memory/memory.limit_in_bytes": str(32 * MIB),
    }
    proc = machine(tmp_path, *V1, **files)
    assert memory.memory_groups(proc) == [tmp_path / "cgroup/memory"]
    assert memory.oom_kills(proc) == 2
    assert memory.memory_limit(proc) == 32 * MIB


def test_without_a_cgroup_the_machine_counts(tmp_path):
    proc = machine(tmp_path, "", "", **{"proc/vmstat": "pgfault 12\noom_kill 5\n"})
    assert memory.oom_kills(proc) == 5
    assert memory.memory_limit(proc) > GIB // 4
    assert memory.oom_kills(tmp_path / "nowhere") is None


def test_old_kills_are_forgotten():
    """One long ago, in the life of a job that is killed from outside today, does not blame that job."""
    now, kills = itertools.count(), [0]
    watch = memory.KillWatch(lambda: kills[0], lambda: float(next(now)))
    kills[0] = 1
    assert watch.recent() == 1
    for _ in range(30):
        watch.look()
    assert watch.recent() == 0
    assert memory.KillWatch(lambda: None).recent() is None


# --- real ends ---------------------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path):
    made = LocalService(
        LocalServiceConfig(slots=1), tmp_path / "root", runner="nasflow.testing.scripted_job:run_job_file", preload=()
    )
    yield made
    made.cleanup()


def worker(service: LocalService) -> int:
    """The process id of the service's worker."""
    service.prepare()
    state = LocalState(service.fetch("."))
    return until(lambda: state.worker("cpu-0"), "worker").process.pid


def test_out_of_memory_and_killed_from_outside_are_told_apart(service):
    with memory_limit(96 * MIB) as limit:
        limit.take(worker(service))
        hungry = finish(service, service.submit(script("hungry", ["hold", 200 * MIB])))
        handle = service.submit(script("killed", ["wait", "never"]))
        (pid,) = until(lambda: numbers(service, "jobs/killed/runs"), "job")
        state = LocalState(service.fetch("."))
        assert state.worker("cpu-0").process.alive(), "the kernel ended the worker in place of its job"
        os.kill(pid, signal.SIGKILL)
        killed = finish(service, handle)
        service.cleanup()
    assert (hungry.signal, hungry.oom_kills, hungry.memory_share) == (signal.SIGKILL, 1, 96 * MIB)
    assert 64 * MIB < hungry.peak_rss < 128 * MIB  # with pages of libraries that are on others' account
    assert judge(hungry, None).failure is TRIAL and judge(hungry, None).out_of_memory
    assert (killed.signal, killed.oom_kills) == (signal.SIGKILL, 0)
    assert judge(killed, None).failure is INFRASTRUCTURE


def test_peak_and_share_of_a_job_that_ends_well(service):
    state = finish(service, service.submit(script("job", ["hold", 64 * MIB])))
    assert state.exit_code == 0 and state.oom_kills == 0
    assert 64 * MIB < state.peak_rss < 64 * MIB + GIB
    assert state.memory_share == memory.memory_limit()


def test_memory_that_the_job_itself_is_refused_is_its_own_failure(service):
    """MemoryError, as a limit of address space (RLIMIT_AS) gives it too: no one was ended by the kernel."""
    state = finish(service, service.submit(script("job", ["hold", 2**50])))
    assert (state.exit_code, state.oom_kills) == (1, 0)
    verdict = judge(state, None, log_tail=service.log_tail(service.submit(script("job"))))
    assert verdict.failure is TRIAL and "MemoryError" in verdict.error


LIMITS = {"epoch": TRIAL, "trial": TRIAL, "start": TRIAL, "stalled": TRIAL, "job": INFRASTRUCTURE}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_is_the_trials_failure_but_for_that_of_the_job(limit):
    state = killed(limit=limit, reason=f"limits.{limit}", stack='File "x.py", line 3 in forward', oom_kills=1)
    verdict = judge(state, None)
    assert (verdict.failure, verdict.out_of_memory) == (LIMITS[limit], False)
    assert verdict.error.partition("\n")[0] == f"limits.{limit}"
    assert ("in forward" in verdict.error) == (limit != "job")
    assert judge(state, Ended()).state is SUCCEEDED, "it had done all its work"
    ending = Ended(error="RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly")
    assert judge(state, ending) == verdict, "it failed while its processes were being ended"


def test_a_job_that_exceeds_a_limit_is_ended_and_shows_where_it_was(service):
    spec = script("hangs", ["ignore", signal.SIGTERM], ["spawn", "session"], ["wait", "never"])
    handle = service.submit(spec.model_copy(update={"limits": LimitsConfig(start=0.5)}))
    state = finish(service, handle)
    assert (state.status, state.limit, state.exit_code) == (JobStatus.EXITED, "start", None)
    assert state.reason == "the start of the job took longer than limits.start allows (0.5s)"
    assert "scripted_job.py" in state.stack and " in step" in state.stack
    assert not any(
        psutil.pid_exists(pid) for pid in [*numbers(service, "jobs/hangs/pids"), *numbers(service, "jobs/hangs/runs")]
    )
    after = finish(service, service.submit(script("after")))
    assert after.exit_code == 0, "the worker takes the next job"


@pytest.mark.parametrize(
    "limits", [{"job": 0.5}, {"start": 0.5}, {"stalled": 0.1}], ids=lambda limits: next(iter(limits))
)
def test_a_job_that_was_stopped_from_outside_is_ended_and_no_trial_is_blamed(service, limits):
    spec = script("stops", ["signal", signal.SIGSTOP]).model_copy(update={"limits": LimitsConfig(**limits)})
    state = finish(service, service.submit(spec))
    assert (state.status, state.limit, state.stack) == (JobStatus.LOST, None, "")
    assert state.reason.startswith("its process had been stopped from outside (SIGSTOP) when ")
    assert judge(state, None).failure is INFRASTRUCTURE
