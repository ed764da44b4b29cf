"""Where CI promises everything that tests need (`NASFLOW_NO_SKIPS`), a skipped test is a failed one.

But for what no CI promises: a GPU, leave to limit the memory of processes, Ray, whose packages have 300 MB, and MLflow,
whose newer versions do not go with Prefect's packages. A test that needs one of them skips with a reason that starts
with `needs a GPU`, `needs a memory cgroup`, `needs Ray` or `needs MLflow`.
"""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
_ALLOWED = ("Skipped: needs a GPU", "Skipped: needs a memory cgroup", "Skipped: needs Ray", "Skipped: needs MLflow")


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
