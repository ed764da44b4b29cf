"""One controller a study: real processes that hold, stop, die and take over, on both kinds of store."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path

import pytest

from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.space.architecture import Architecture
from nasflow.study import lease as lease_module
from nasflow.study.lease import Lease, LeaseLostError
from nasflow.study.records import EpochRecord
from nasflow.study.study import Study
from nasflow.testing.training_service import until

MakeConfig = Callable[..., SearchConfig]

# A controller that does what it is told, line by line, and says what came of it.
_CONTROLLER = """
import sys
from pathlib import Path
from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.study import lease as lease_module
from nasflow.study.database import store as store_module
from nasflow.study.lease import Lease
from nasflow.study.records import EpochRecord
from nasflow.study.study import Study
from nasflow.testing.training_service import until

config, seconds, host, take_over = sys.argv[1:]
if host != "here":
    lease_module.process_table = lambda: host
store_module.STOPPED_SECONDS = 1
study = None
def say(*words):
    print(*words, flush=True)
try:
    lease = Lease(take_over == "yes", float(seconds))
    study = Study.open(SearchConfig.model_validate_json(config), lease)
    with lease.kept(lambda: say("lost")):
        say("holds")
        for line in sys.stdin:
            action, epoch = line.split()
            if action == "write":
                study.record_epochs([EpochRecord(0, int(epoch), {})])
                say("wrote")
            if action == "begin":
                with study._write() as session:
                    say("began")
                    sys.stdin.readline()
                    session.connection().exec_driver_sql("UPDATE trials SET epochs = 99")
                say("committed")
except StudyError as error:
    say(type(error).__name__, error)
"""


class Controller:
    """The process above."""

    def __init__(self, config: SearchConfig, seconds: float, host: str, take_over: bool):
        arguments = [config.model_dump_json(), str(seconds), host, "yes" if take_over else "no"]
        command = [sys.executable, "-c", _CONTROLLER, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line.strip())

    def hear(self) -> str:
        """The next line."""
        return self._said.get(timeout=60)

    def end(self) -> None:
        """Let it come to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()


@pytest.fixture
def controller(make_config: MakeConfig) -> Iterator[Callable[..., Controller]]:
    """Start a controller in a process of its own; all are killed at the end."""
    study = Study.open(make_config())
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 1})])
    study.close()
    started: list[Controller] = []

    def start(seconds: float = 60.0, host: str = "here", take_over: bool = False, holds: bool = True) -> Controller:
        started.append(Controller(make_config(), seconds, host, take_over))
        if holds:
            assert started[-1].hear() == "holds"
        return started[-1]

    yield start
    for one in started:
        one.kill()


SEARCH = ContextVar("SEARCH", default="none")


def test_its_thread_has_the_context_of_its_search(make_config: MakeConfig) -> None:
    SEARCH.set("this one")
    lease, found = Lease(seconds=0.3), queue.Queue[str]()
    with closing(Study.open(make_config(), lease)), lease.kept(lambda: found.put(SEARCH.get())):
        Study.open(make_config(), Lease(take_over=True)).close()
        assert found.get(timeout=60) == "this one"


@contextmanager
def control(config: SearchConfig, take_over: bool = False, seconds: float = 60.0) -> Iterator[Study]:
    """A controller in this process."""
    lease = Lease(take_over, seconds)
    study = Study.open(config, lease)
    with lease.kept(lambda: None):
        yield study
    study.close()


def epochs(study: Study) -> list[int]:
    return [record.epoch for record in study.epochs([0])[0]]


def test_a_second_controller_is_told_who_holds_the_study(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    began = time.monotonic()
    first = controller()
    words = (
        rf"another controller runs study 'digits' \(process {first.pid} on {socket.gethostname()}, since 20.* UTC\): "
        r"wait for its end, or end it; if it is dead, it loses the study in (\d+) s, and --take-over takes it at once"
    )
    with pytest.raises(StudyError) as refused:
        Study.open(make_config(budget={"rounds": 9}), Lease())
    said = re.search(words, str(refused.value))
    assert said, refused.value
    assert 59 - (time.monotonic() - began) <= int(said[1]) <= 60
    study = Study.load(make_config().store, "digits")
    assert study.config.budget.rounds != 9, "one that is refused changes nothing"
    holder = study.controller()
    assert holder is not None and holder.pid == first.pid
    first.tell("write 1")
    assert first.hear() == "wrote"
    first.end()
    assert study.controller() is None
    with control(make_config()) as held:
        assert epochs(held) == [1]
        with pytest.raises(StudyError, match=f"process {os.getpid()} "):
            Study.open(make_config(), Lease())
    study.close()


def test_of_many_that_start_at_once_one_holds_the_study(make_config: MakeConfig) -> None:
    Study.open(make_config()).close()

    def claim(_: int) -> int:
        one = Controller(make_config(), 60, "here", False)
        said = one.hear()
        pids.append(one)
        return said == "holds"

    pids: list[Controller] = []
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(claim, range(4))) == 1
    for one in pids:
        one.kill()


def test_one_that_was_killed_on_this_machine_is_not_waited_for(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    for _ in range(2):
        controller(seconds=3600).kill()
    with control(make_config()):
        pass


def test_one_that_was_killed_elsewhere_is_waited_for_until_its_lease_ends(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    first = controller(seconds=2, host="elsewhere")
    time.sleep(2.2)  # it is renewed
    first.kill()
    killed = time.monotonic()
    refused = 0
    while True:
        try:
            study = Study.open(make_config(), Lease())
            break
        except StudyError as error:
            assert f"process {first.pid} on " in str(error)
            assert time.monotonic() - killed < 10
            refused += 1
            time.sleep(0.1)
    assert refused
    study.close()


def test_one_that_stood_still_while_the_study_was_taken_over_writes_nothing_more(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    first = controller(seconds=3600)  # it does not find out by itself
    first.tell("write 1")
    assert first.hear() == "wrote"
    first.signal(signal.SIGSTOP)
    first.tell("write 2")
    with pytest.raises(StudyError, match=f"process {first.pid} "):
        Study.open(make_config(), Lease())
    with control(make_config(), take_over=True) as study:
        study.record_epochs([EpochRecord(0, 5, {})])
        first.signal(signal.SIGCONT)
        assert first.hear() == "lost"
        words = f"LeaseLostError study 'digits' was taken over by process {os.getpid()} on "
        assert first.hear().startswith(words)
        assert first.process.wait(10) == 0
        assert epochs(study) == [1, 5]
        holder = study.controller()
        assert holder is not None and holder.pid == os.getpid(), "it gave back what was its own only"


def test_one_whose_taker_has_ended_writes_nothing_more(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    first = controller(seconds=3600)
    with control(make_config(), take_over=True):
        pass
    first.tell("write 2")
    assert first.hear() == "lost"
    assert "taken over by another controller, which has ended since" in first.hear()


def test_one_that_lost_its_lease_finds_out_though_it_writes_nothing(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    first = controller(seconds=1)
    with control(make_config(), take_over=True):
        assert first.hear() == "lost"


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)  # SQLite's lock lasts as long as its process
def test_one_that_stopped_within_a_transaction_is_cut_off(
    controller: Callable[..., Controller], make_config: MakeConfig
) -> None:
    first = controller(seconds=3600)
    first.tell("begin 1")
    assert first.hear() == "began"
    first.signal(signal.SIGSTOP)
    with control(make_config(), take_over=True) as study:
        first.signal(signal.SIGCONT)
        first.tell("go on")
        assert first.hear().startswith("StudyError store: ")
        assert study.trial(0).epochs == 0


def test_a_lease_outlives_a_database_that_is_locked(make_config: MakeConfig, store_url: str, tmp_path: Path) -> None:
    with control(make_config(), seconds=0.6) as study:
        with study._store.write("digits"):
            time.sleep(1.5)  # no renewal gets through
        time.sleep(0.3)
        study.record_epochs([])
        assert study.controller() is not None


def test_the_keeper_goes_on_after_an_error_of_the_database(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with control(make_config(), seconds=3) as study:
        rows = study._store.clock
        failures = iter([StudyError("store: gone"), RuntimeError("store: gone"), StudyError("store: gone")])

        def clock(session: object) -> object:
            for error in failures:
                raise error
            return rows(session)  # type: ignore[arg-type]

        monkeypatch.setattr(study._store, "clock", clock)
        until(lambda: caplog.text.count("the lease of the study could not be renewed") == 3, "three failed renewals")

        def left() -> float:
            holder = study.controller()
            return 0.0 if holder is None else holder.seconds

        until(lambda: left() > 2, "a renewal")  # three failures take more than a second of the three


def test_a_pid_that_was_given_to_another_process_is_no_holder(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "process_id", lambda pid: lease_module.ProcessId(pid=1, started="long ago"))
    Study.open(make_config(), Lease()).close()
    monkeypatch.undo()
    with control(make_config()) as study:
        holder = study.controller()
        assert holder is not None and holder.pid == os.getpid()


def test_a_lost_lease_is_refused_without_a_write(make_config: MakeConfig) -> None:
    lease = Lease()
    study = Study.open(make_config(), lease)
    lease.refuse_lost()
    assert lease.held()
    with control(make_config(), take_over=True):
        assert not lease.held()
        with pytest.raises(LeaseLostError, match="was taken over"):
            lease.refuse_lost()
    study.close()


def test_each_controller_has_a_generation_of_its_own(make_config: MakeConfig) -> None:
    with control(make_config()) as first, control(make_config(), take_over=True) as second:
        assert (first.generation, second.generation) == (0, 1)
    with control(make_config()) as third:
        assert third.generation == 2
        assert third.controller() is not None
    study = Study.load(make_config().store, "digits")
    assert (study.controller(), study.deserted_by(), study.generation) == (None, None, 0)
    study.close()
