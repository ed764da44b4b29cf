import os
import signal
import subprocess
import sys
import time

import pytest

from nasflow.system.process_id import ProcessId, process_id
from nasflow.training_service.machine.processes import carriers, descendants, end_all

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(300)"
)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "300"], env={"NASFLOW_TEST_MARK": "here"})
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_its_pid_and_its_start(sleeper):
    identity = process_id(sleeper.pid)
    assert identity == process_id(sleeper.pid)
    assert identity.alive()
    other = ProcessId(pid=sleeper.pid, started="another start")
    assert not other.alive()
    other.send(signal.SIGKILL)
    time.sleep(0.05)
    assert sleeper.poll() is None
    identity.send(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while identity.alive():
        assert time.monotonic() < deadline
    assert os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie still, and no longer alive
    assert process_id(sleeper.pid) is None
    sleeper.wait()
    identity.send(signal.SIGKILL)


def test_carriers_of_an_environment_variable(sleeper):
    assert [p.pid for p in carriers("NASFLOW_TEST_MARK", "here")] == [sleeper.pid]
    assert carriers("NASFLOW_TEST_MARK", "elsewhere") == []


@pytest.mark.parametrize(
    ("program", "number"), [("import time; print('on', flush=True); time.sleep(300)", 15), (STUBBORN, 9)]
)
def test_end_all_asks_before_it_kills(program, number):
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        end_all(lambda: [p for p in descendants(os.getpid()) if p.pid == process.pid], grace=0.3)
        assert process.wait() in (-number, 0)  # psutil may have taken the exit status
    assert process_id(process.pid) is None


def test_descendants_of_a_process_that_is_gone(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert descendants(sleeper.pid) == []
