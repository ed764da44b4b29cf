"""Fixtures and rules of all rooms' tests."""

from postgresql import postgresql_server
from skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["postgresql_server", "pytest_make_collect_report", "pytest_runtest_makereport"]
