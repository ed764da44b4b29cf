"""Fixtures and rules of all rooms' tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from nasflow.system.gc_control import freeze_shared
from tests.browser import chromium, screenshots
from tests.order import pytest_collection_modifyitems
from tests.postgresql import postgresql_server, store_url
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = [
    "cache_of_its_own",
    "chromium",
    "postgresql_server",
    "pytest_collection_modifyitems",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "screenshots",
    "store_url",
]

# A shell starts what runs in the background with SIGINT ignored, and the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("PYTEST_ADDOPTS", None)  # tests that start pytest read its usual output

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

pytest.register_assert_rewrite("nasflow.testing", "tests.hosted.promises")  # a failed assert there shows its values too


_started = count()
_ALL_COLLECTED_EVERY = 1_000  # tests


@pytest.fixture(autouse=True)
def quick_collections(request: pytest.FixtureRequest) -> None:
    """Let Python's collector skip what is older than this test: jobs that tests run in this process collect often."""
    if next(_started) % _ALL_COLLECTED_EVERY == 0:
        gc.unfreeze()
        freeze_shared()  # from then on, jobs in this process leave frozen what is
    if "s3" not in request.fixturenames:  # a client that the test before has left has 13 MB, and takes 0.1 s to collect
        gc.collect()  # of what the test before has left
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def no_pings() -> Iterator[None]:
    """End the worker that sends events of flows in this process: its pings take numbers from Python's `random`."""
    yield
    if (events := sys.modules.get("prefect.events.worker")) is not None:
        events.EventsWorker.drain_all(timeout=5)


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """An S3 server. Each test leaves it without objects."""
    from tests.object_store.s3 import S3  # most tests need none

    server = S3()
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no process that one starts, reads or writes the measured costs of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
