"""Where CI promises everything that tests need (`NASFLOW_NO_SKIPS`), a skipped test is a failed one.

But for what no CI promises: a GPU, leave to limit the memory of processes, and MLflow, whose newer versions need others
of Prefect's packages; and for what `make test-long` installs: Ray, and the libraries whose models are in the zoo. The
skip of a test that needs one of them has a reason that starts with `needs` and the name below.
"""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
_NEEDED = ("a GPU", "a memory cgroup", "MLflow", "Ray", "the zoo's models")
_ALLOWED = tuple(f"Skipped: needs {what}" for what in _NEEDED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge a test that skipped, by mark or while it ran."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a module that skipped as a whole."""
    return _judged((yield))


def _judged(report: Report) -> Report:
    expected_failure = hasattr(report, "wasxfail")
    if os.environ.get("NASFLOW_NO_SKIPS") and report.skipped and not expected_failure:
        path, line, reason = report.longrepr
        if not reason.startswith(_ALLOWED):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: {reason} (NASFLOW_NO_SKIPS is set: nothing may be skipped here)"
    return report
