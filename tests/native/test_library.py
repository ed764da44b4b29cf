"""The library is compiled once, and done without where it can't be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nasflow
from nasflow.native import library as native
from tests.flows.forked_commands import run_forked, start_forked

SHOW = """
import logging, torch
from nasflow.native import is_available
logging.basicConfig(force=True)
torch.set_num_threads(1)
print(is_available())
"""


def says(folder: Path, **environment: str) -> str:
    """What a process of its own prints, with its cache below `folder`; without kernels it has one line to say why."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder), **environment}
    done = run_forked(["python", "-c", SHOW], folder, given)
    done.check_returncode()
    found, reasons = done.stdout.strip(), [line for line in done.stderr.splitlines() if "native kernels" in line]
    assert len(reasons) == (found == "False" and environment.get("NASFLOW_NATIVE") != "0"), reasons
    return found


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("nasflow/native/*"))


def needs_a_compiler() -> None:
    torch.set_num_threads(1)
    if native.library() is None:
        pytest.skip("needs a C compiler")


def test_it_is_compiled_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    needs_a_compiler()
    assert says(tmp_path) == "True"
    made = libraries(tmp_path)
    assert [path.suffix for path in made] == [".sha256", ".so"]
    written = [path.stat().st_mtime_ns for path in made]
    assert says(tmp_path) == "True"
    assert [path.stat().st_mtime_ns for path in libraries(tmp_path)] == written


@pytest.mark.parametrize("damaged", [False, True], ids=["missing", "damaged"])
def test_several_processes_may_compile_at_once(tmp_path: Path, damaged: bool) -> None:
    needs_a_compiler()
    if damaged:
        assert says(tmp_path) == "True"
        os.truncate(libraries(tmp_path)[1], 4096)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    running = [start_forked(["python", "-c", SHOW], tmp_path, environment) for _ in range(3)]
    assert [process.communicate()[0].splitlines()[-1] for process in running] == ["True"] * 3
    assert len(libraries(tmp_path)) == 2


def test_without_a_compiler_torch_does_it_all(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    assert says(tmp_path, PATH=str(empty)) == "False"


def test_a_compiler_that_fails_is_done_without(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "cc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert says(tmp_path, PATH=f"{broken.parent}:{os.environ['PATH']}") == "False"


def test_a_cache_that_cant_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "nasflow").write_text("a file where the folder would be")
    assert says(tmp_path) == "False"


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert says(tmp_path, NASFLOW_NATIVE="0") == "False"
    assert libraries(tmp_path) == []


def test_kernels_are_there_while_nasflow_is_being_replaced(tmp_path: Path) -> None:
    """As for a job that a warm worker forks during `pip install --upgrade`."""
    needs_a_compiler()
    copy = tmp_path / "nasflow"
    shutil.copytree(Path(nasflow.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    replaced = f"import shutil, nasflow.native; print(nasflow.native.__file__); shutil.rmtree({str(copy)!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", replaced + SHOW]
    done = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(copy / "native" / "__init__.py"), "True"] and not done.stderr, done.stderr
