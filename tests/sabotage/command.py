"""`python -m tests.sabotage`: see `--help`."""

import argparse
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import nasflow.training.training_job  # noqa: F401 - the libraries that it imports are there in every fork then
from tests.sabotage.changes import CHANGES, Change

ROOT = Path(__file__).parents[2]
CASES, SEED = 300, 1  # of the trust suite
_CHUNK = 60
_SECONDS = 600  # for one try
_JOBS = [f"tests/training/{name}.py" for name in ("unit/test_fused", "unit/test_fused_native", "unit/test_reused")]
_JOBS += ["tests/training/member/test_rng.py"]
_OPTIMIZERS = ["tests/training/optim"]
_OPTIMIZERS += [f"tests/training/unit/test_{name}.py" for name in ("fused", "fused_native", "fused_resume")]
_TESTS = {  # by what a path begins with, the first that fits
    "nasflow/training/optim/": _OPTIMIZERS,
    "nasflow/training/": [*_JOBS, "tests/merge"],
    "nasflow/native/": ["tests/native/test_kernels.py", *_OPTIMIZERS, "tests/native/test_conv_1x1.py"],
    "nasflow/evaluator/": ["tests/evaluator/ready_made/test_group_metrics.py", *_JOBS],
    "nasflow/": ["tests/merge", *_JOBS],
}
_fork = multiprocessing.get_context("fork")


def compared(copy: Path) -> str:
    """Return what the comparison before the first step refuses in a copy; empty if nothing."""
    return _apart(_compare, copy)


def caught(change: Change, known: Callable[[], set[int]]) -> str:
    """Return what catches a change, and how; empty if nothing does.

    Args:
        known: returns the numbers of the trust suite's cases that differ without the change.
    """
    with tempfile.TemporaryDirectory(prefix="nasflow-sabotage-") as folder:
        copy = copied(Path(folder), change)
        if found := compared(copy):
            return f"comparison: {found}"
        tests = next(tests for start, tests in _TESTS.items() if change.file.startswith(start))
        if found := _apart(_test, copy, tests):
            return f"test: {found}"
        if (found := _apart(_trust, copy, known())).partition(" ")[0] == "case":
            return f"trust suite: {found}"
        return ""


def copied(folder: Path, change: Change | None) -> Path:
    """Copy the code to a folder, with the change."""
    for name in ("nasflow", "flows", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if change is not None:
        change.apply(folder)
    return folder


def known_cases() -> set[int]:
    """Return the numbers of the trust suite's cases that differ without a change."""
    with tempfile.TemporaryDirectory(prefix="nasflow-sabotage-") as folder:
        return set(map(int, _apart(_trust, copied(Path(folder), None), None).split()))


def _apart(function: Callable[..., str], copy: Path, *args: object) -> str:
    """Return a function's result from a separate process, in which the code is that of the copy."""
    receiver, sender = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_work, args=(function, copy, sender, *args))
    process.start()
    sender.close()
    try:
        return str(receiver.recv()) if receiver.poll(_SECONDS) else f"it takes more than {_SECONDS} s"
    except EOFError:
        process.join()
        return f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _work(function: Callable[..., str], copy: Path, sender: Connection, *args: object) -> None:
    with (copy / "output.txt").open("a") as output:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(output.fileno(), stream.fileno())
    sys.path.insert(0, str(copy))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith((f"{ROOT}/nasflow", f"{ROOT}/tests", f"{ROOT}/flows")):
            del sys.modules[name]
    os.chdir(copy)
    os.environ["XDG_CACHE_HOME"] = str(copy / "cache")
    try:
        result = function(*args)
    except Exception:
        result = traceback.format_exc().strip().rpartition("\n")[2]
    sender.send(result)


def _compare() -> str:
    from tests.sabotage.comparison import refused

    return refused()


def _test(tests: Sequence[str]) -> str:
    """Return the first test that fails."""
    import pytest

    failed: list[str] = []

    class First:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[First()])
    return failed[0] if failed else f"pytest ends with {code}" if code else ""


def _trust(known: set[int] | None) -> str:
    """Return the first case that differs and is not known; if none are known, all that differ."""
    from tests.trust.command import campaign

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    found: set[int] = set()
    for first in range(0, CASES, _CHUNK):
        report = campaign(SEED, first, _CHUNK, 0)
        found |= report.bad.keys()
        if known is not None and found - known:
            number = min(found - known)
            return f"case {number}: {report.bad[number].differences[0]}"
    return "" if known is not None else " ".join(map(str, sorted(found)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the changes that the command line names; return 1 if nothing catches one of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sabotage",
        description="Make single changes for the worse to copies of the code, and say what catches each: "
        "the comparison before a unit's first step, else a choice of tests, else the trust suite.",
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="these changes (give it several times)")
    parser.add_argument("--list", action="store_true", help="say what changes there are")
    options = parser.parse_args(arguments)
    names = [change.name for change in CHANGES]
    if options.list:
        sys.stdout.write("".join(f"{change.name}  ({change.file})\n" for change in CHANGES))
        return 0
    for name in options.only or ():
        if name not in names:
            parser.error(f"there is no change '{name}'; --list says which there are")
    with tempfile.TemporaryDirectory(prefix="nasflow-sabotage-") as folder:
        if found := compared(copied(Path(folder), None)):
            sys.stderr.write(f"the comparison refuses the code as it is: {found}\n")
            return 2
    known: set[int] | None = None

    def known_once() -> set[int]:
        nonlocal known
        known = known_cases() if known is None else known
        return known

    missed: list[str] = []
    began = time.perf_counter()
    for change in CHANGES:
        if not options.only or change.name in options.only:
            start = time.perf_counter()
            how = caught(change, known_once)
            sys.stdout.write(
                f"| {change.file} | {change.name} | {how or 'NOTHING'} | {time.perf_counter() - start:.0f} s |\n"
            )
            sys.stdout.flush()
            missed += [change.name] * (not how)
    sys.stdout.write(f"{len(missed)} changes that nothing catches; {time.perf_counter() - began:.0f} s\n")
    return 1 if missed else 0
