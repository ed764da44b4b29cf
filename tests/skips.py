"""Where CI promises everything that tests need (`NASFLOW_NO_SKIPS`), a skipped test is a failed one.

But for what no CI promises: a GPU, leave to limit the memory of processes, MLflow, whose newer versions need others
of Prefect's packages, torchvision, whose builds for a CPU are not on PyPI, the sources of Debian 12, of which
Kubernetes' servers are built, and npm's registry, which has Azurite; and, but in `make test-long`, for what that
installs: PAI-DLC's SDK, and the libraries whose models are in the zoo. The skip of a test that needs one of them has
a reason that starts with one below.
"""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
_NOWHERE = (
    "Skipped: needs a GPU",
    "Skipped: needs a memory cgroup",
    "Skipped: needs MLflow",
    "Skipped: needs torchvision",
    "Skipped: needs Debian 12's sources",
    "Skipped: needs npm's registry",
)
_LONG_ONLY = (
    "Skipped: needs PAI-DLC's SDK",
    "Skipped: needs the zoo's models",
)  # whose tests are all marked `long`


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge a test that skipped, by mark or while it ran."""
    return _judged((yield), item.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a module that skipped as a whole."""
    return _judged((yield), collector.config)


def _judged(report: Report, config: pytest.Config) -> Report:
    expected_failure = hasattr(report, "wasxfail")
    if os.environ.get("NASFLOW_NO_SKIPS") and report.skipped and not expected_failure:
        path, line, reason = report.longrepr
        allowed = _NOWHERE if config.option.markexpr == "long" else _NOWHERE + _LONG_ONLY
        if not reason.startswith(allowed):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: {reason} (NASFLOW_NO_SKIPS is set: nothing may be skipped here)"
    return report
