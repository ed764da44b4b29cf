"""What a job was doing when its process died, and when it last made progress."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nasflow.job import activity

DIES = """
import ctypes, os, signal, sys
from pathlib import Path
from nasflow.job import activity

with activity.recorded_in(Path(sys.argv[1])), activity.running(3):
    with activity.running(7):
        pass
    with activity.running(12):
        {death}
"""
DEATHS = {
    "exit": "os._exit(3)",
    "segmentation fault": "ctypes.string_at(0)",
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
}


def trial(file: Path) -> int | None:
    doing = activity.read(file)
    assert doing is not None
    return doing.trial


@pytest.mark.parametrize("death", DEATHS)
def test_a_process_that_dies_of_its_trials_code(death: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES.format(death=DEATHS[death]), str(tmp_path / "it")], check=False, timeout=60
    )
    assert done.returncode != 0
    assert trial(tmp_path / "it") == 12


def test_no_trials_code(tmp_path: Path) -> None:
    with activity.running(5):
        pass
    with activity.recorded_in(tmp_path / "it"):
        assert trial(tmp_path / "it") is None
        with activity.running(0):
            assert trial(tmp_path / "it") == 0
            with pytest.raises(ValueError, match="x"), activity.running(1):
                raise ValueError("x")
            assert trial(tmp_path / "it") == 0
        assert trial(tmp_path / "it") is None
    assert trial(tmp_path / "it") is None


class EndsAllError(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, EndsAllError])
def test_what_ends_the_process_as_an_exception_leaves_the_trial(error: type[BaseException], tmp_path: Path) -> None:
    with activity.recorded_in(tmp_path / "it"), pytest.raises(error), activity.running(4):
        raise error
    assert trial(tmp_path / "it") == 4


def test_times(tmp_path: Path) -> None:
    file, began = tmp_path / "it", time.monotonic()
    with activity.recorded_in(file):
        first = activity.read(file)
        assert first is not None and first.epoch_began is None and first.longest == 0.0
        assert began <= first.progress == first.since <= time.monotonic()
        time.sleep(0.01)
        activity.begin_epoch()
        in_epoch = activity.read(file)
        activity.begin_epoch()
        assert activity.read(file) == in_epoch, "an epoch begins once"
        assert in_epoch is not None and in_epoch.progress == in_epoch.epoch_began > first.progress
        time.sleep(0.01)
        activity.progress()
        activity.end_epoch()
        after = activity.read(file)
        assert after is not None and after.epoch_began == after.progress >= in_epoch.progress + after.longest - 1e-6
        assert 0.01 <= after.longest <= time.monotonic() - began
        activity.restart_epoch()
        again = activity.read(file)
        assert again is not None and again.epoch_began == again.progress > after.progress
        assert again.longest == after.longest, "what was trained again says nothing of later epochs"
        activity.end_epochs()
        last = activity.read(file)
        assert last is not None and last.epoch_began is None and last.longest == after.longest


def test_no_file_and_half_a_file(tmp_path: Path) -> None:
    assert activity.read(tmp_path / "it") is None
    (tmp_path / "it").write_bytes(b"\0" * 8)
    assert activity.read(tmp_path / "it") is None


def test_time_that_is_excused_counts_for_no_clock(tmp_path: Path) -> None:
    with activity.recorded_in(tmp_path / "it"), activity.running(3):
        activity.begin_epoch()
        before = activity.read(tmp_path / "it")
        activity.excuse(300.0)
        after = activity.read(tmp_path / "it")
        assert before is not None and after is not None
        assert before.epoch_began is not None and after.epoch_began == pytest.approx(before.epoch_began + 300.0)
        assert after.since == pytest.approx(before.since + 300.0) and after.progress > before.progress
