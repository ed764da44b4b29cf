"""Whose own code a process ran when it died."""

import subprocess
import sys
from pathlib import Path

import pytest

from nasflow.job import blame

DIES = """
import ctypes, os, signal, sys
from pathlib import Path
from nasflow.job import blame

with blame.told_in(Path(sys.argv[1])), blame.running(3):
    with blame.running(7):
        pass
    with blame.running(12):
        {death}
"""
DEATHS = {
    "exit": "os._exit(3)",
    "segmentation fault": "ctypes.string_at(0)",
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_process_that_dies_of_it(death: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES.format(death=DEATHS[death]), str(tmp_path / "told")], check=False, timeout=60
    )
    assert done.returncode != 0
    assert blame.blamed(tmp_path / "told") == 12


def test_nobody(tmp_path: Path) -> None:
    with blame.running(5):
        pass
    with blame.told_in(tmp_path / "told"):
        assert blame.blamed(tmp_path / "told") is None
        with blame.running(0):
            assert blame.blamed(tmp_path / "told") == 0
            with pytest.raises(ValueError, match="x"), blame.running(1):
                raise ValueError("x")
            assert blame.blamed(tmp_path / "told") == 0
        assert blame.blamed(tmp_path / "told") is None
    assert blame.blamed(tmp_path / "told") is None
