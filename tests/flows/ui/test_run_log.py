"""Warnings of several searches in one process: each is in the log of its search's run, and there once."""

from tests.flows.forked_commands import run_forked
from tests.flows.searches import ONE_TRIAL, Searches

TWO = """
import logging, threading
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from prefect import flow, task
from prefect.logging.handlers import APILogHandler
from nasflow.config.search import load_config
from nasflow.flows.ui.run_page import RunPage

LOG, EXTRA = logging.getLogger("nasflow.study.two"), logging.getLogger("nasflow.study.extra")
EXTRA.addHandler(APILogHandler())  # as PREFECT_LOGGING_EXTRA_LOGGERS=nasflow.study.extra
CONFIG = load_config(Path("warned.yaml"))
BOTH = threading.Barrier(2, timeout=200)

@task
def train(name):
    LOG.warning("of a task of %s", name)

@flow(flow_run_name="{name}")
def searching(name):
    before = copy_context()  # in which the thread that renews the lease runs
    with RunPage(CONFIG, datetime.now(UTC)).of_this_run():
        BOTH.wait()
        LOG.warning("of %s", name)
        before.run(LOG.warning, "of a thread of %s", name)
        EXTRA.warning("of %s, as Prefect logs it, too", name)
        train.submit(name).wait()
        BOTH.wait()

@flow(flow_run_name="other")
def other():
    BOTH.wait()
    LOG.warning("of a flow that is no search")
    BOTH.wait()

for flows in ([(searching, "first"), (searching, "second")], [(searching, "third"), (other,)]):
    threads = [threading.Thread(target=each, args=names) for each, *names in flows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_each_search_of_a_process_has_its_own_warnings(searches: Searches) -> None:
    searches.write("warned", **ONE_TRIAL)
    ended = run_forked(["python", "-c", TWO], searches.folder, searches.server.env)
    assert ended.returncode == 0, ended.stderr
    for name in ("first", "second", "third"):
        run = searches.server.newest_run("searching", name)
        wanted = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC"}
        lines = searches.server.post("/logs/filter", wanted)
        assert [line["message"] for line in lines if line["name"].startswith("nasflow.")] == [
            f"of {name}",
            f"of a thread of {name}",
            f"of {name}, as Prefect logs it, too",
            f"of a task of {name}",
        ]
