"""What a person sees of searches whose jobs run on a work pool and on Kubernetes: in Prefect's UI, in the report."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest

from tests.browser import watched_page
from tests.flows.pool.pools import Pools
from tests.flows.searches import PrefectProcess, PrefectServer, Searches
from tests.flows.session.test_control import wait_until
from tests.kubernetes.cluster import Cluster, kubernetes_cluster
from tests.kubernetes.node import IMAGE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["kubernetes_cluster"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE = 240_000  # milliseconds
JOBS = {"flows": {"name": {"any_": ["nas-job"]}}}
END = "the job has trained its trials"
SEARCH: dict[str, Any] = {
    "space": {"target": "nasflow.space.ready:cell_cnn", "params": {"in_channels": 1, "classes": 10}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}, "epochs": 2},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 2, "trials_per_round": 4},
    "merge": {"jobs_per_slot": 1},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One that has the UI."""
    process = PrefectProcess(tmp_path_factory.mktemp("prefect-ui"), {"PREFECT_SERVER_UI_ENABLED": "true"})
    try:
        process.start()
        yield process.server
    finally:
        process.end()


@pytest.fixture(scope="module")
def on_pool(tmp_path_factory: pytest.TempPathFactory, server: PrefectServer) -> Searches:
    """A search that has run on a work pool."""
    folder = tmp_path_factory.mktemp("on-pool")
    pools = Pools(folder, server)
    searches = Searches(folder, server)
    section = {"kind": "prefect", "work_pool": pools.make("gpus"), "max_jobs": 2, "poll_seconds": 0.5}
    searches.write("digits", **SEARCH, training_service=section)
    with pools.worker("gpus"):
        searches.run("run", "digits.yaml")
        wait_until(lambda: all(END in text for text in logs_of_jobs(server).values()), "the last logs of jobs are sent")
    return searches


def logs_of_jobs(server: PrefectServer) -> dict[str, str]:
    """The logs of the flow runs of jobs on a work pool, by their ids."""
    texts = {run["id"]: "" for run in server.post("/flow_runs/filter", JOBS)}
    for line in server.post("/logs/filter", {"logs": {"flow_run_id": {"any_": [*texts]}}}):
        texts[line["flow_run_id"]] += line["message"]
    return texts


@pytest.fixture(scope="module")
def on_kubernetes(
    tmp_path_factory: pytest.TempPathFactory, server: PrefectServer, kubernetes_cluster: Cluster
) -> Searches:
    """A search that has run on a Kubernetes."""
    searches = Searches(tmp_path_factory.mktemp("on-kubernetes"), server)
    where = {"kubeconfig": kubernetes_cluster.kubeconfig(), "image": IMAGE, "python": sys.executable}
    section = {"kind": "kubernetes", **where, "max_jobs": 2, "poll_seconds": 0.5}
    searches.write("digits-on-kubernetes", **SEARCH, training_service=section)
    searches.run("run", "digits-on-kubernetes.yaml")
    return searches


@pytest.fixture
def page(chromium: "Browser") -> Iterator["Page"]:
    """A page without an address."""
    with watched_page(chromium, viewport={"width": 1280, "height": 900}, color_scheme="light") as watched:
        watched.page.set_default_timeout(PATIENCE)
        yield watched.page


def open_run(page: "Page", searches: Searches, name: str) -> None:
    """The page of a flow run, from the list of runs, which does not ask again if a request of it has failed."""
    from playwright.sync_api import TimeoutError as TooLateError

    link = page.locator("a[href*='/runs/flow-run/']").get_by_text(name, exact=True).first
    page.goto(urljoin(searches.server.url, "/v2/runs"))
    try:
        link.wait_for(timeout=PATIENCE / 4)
    except TooLateError:
        page.reload()
    link.click()
    page.wait_for_url(re.compile("/runs/flow-run/"))


def test_a_job_on_a_work_pool_is_a_flow_run_with_its_log(page: "Page", on_pool: Searches, screenshots: Path) -> None:
    open_run(page, on_pool, on_pool.server.post("/flow_runs/filter", JOBS)[0]["name"])
    page.get_by_text(END).first.wait_for()
    page.get_by_text("study:digits").first.wait_for()
    page.get_by_text("gpus", exact=True).first.wait_for()
    page.mouse.move(0, 0)
    page.screenshot(path=screenshots / "pool-job.png")


def test_the_page_of_a_round_links_to_its_jobs(page: "Page", on_pool: Searches, screenshots: Path) -> None:
    open_run(page, on_pool, "digits: round 1")
    page.get_by_text("its job is in slot prefect-").first.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "pool-round.png")
    with page.expect_popup() as opened:
        page.locator("a[href*='/runs/flow-run/']").get_by_text("/runs/flow-run/").first.click()
    opened.value.get_by_text("nas-job").first.wait_for(timeout=PATIENCE)


def test_the_page_of_a_round_names_its_jobs_on_kubernetes(
    page: "Page", on_kubernetes: Searches, screenshots: Path
) -> None:
    open_run(page, on_kubernetes, "digits-on-kubernetes: round 0")
    page.get_by_role("tab", name="Task Runs").click()
    page.get_by_role("link", name=re.compile("train batch")).first.click()
    page.wait_for_url(re.compile("/task-run/"))
    page.get_by_text(re.compile("its job is in slot kubernetes-.: Job nasflow-")).first.wait_for()
    page.mouse.move(0, 0)
    page.screenshot(path=screenshots / "kubernetes-round.png")


def test_the_report_names_the_slots_of_kubernetes(page: "Page", on_kubernetes: Searches, screenshots: Path) -> None:
    on_kubernetes.run("report", "digits-on-kubernetes", "--html", "report.html")
    page.goto((on_kubernetes.folder / "report.html").as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    page.get_by_text("kubernetes-0").first.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "kubernetes-report.png")
