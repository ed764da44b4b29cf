"""What a person sees in the Prefect UI: the run page of a search, the retries of a trial, the form of a deployment.

Prefect 3.8.8 ships two UIs. These tests look at the one that a browser gets at the server's address: the newer, `/v2`.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest

from nasflow.config.search import SearchConfig, load_config
from nasflow.config.values import Section
from tests.browser import watched_page
from tests.flows.searches import PrefectProcess, PrefectServer, Searches

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE = 240_000  # milliseconds; the UI asks for a page's parts one after the other, and the machine may be busy
ROUNDS, TRIALS = 2, 6
DATA = {"target": "nasflow.evaluator.data:DigitsRows"}
PREFECTS_OWN = {"Run Name", "Enforce Parameter Schema", "Start"}  # labels of the form that are no parameters

PARAMETERS = [  # of the flow, as its docstring tells them
    ("config", "everything about the search"),
    ("budget (Optional)", "when it ends; the keys that are set in it replace those of the config's budget"),
]

# kinds whose keys are all keys of another kind, too
ALIKE = {
    "space": {"target": "spaces.py:mixed"},
    "evaluator": {"kind": "regression", "data": DATA},
    "strategy": {"kind": "grid"},
    "pruner": {"kind": "halving"},
    "training_service": {"kind": "debug"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One that has the UI, and a work pool."""
    process = PrefectProcess(tmp_path_factory.mktemp("prefect-ui"), {"PREFECT_SERVER_UI_ENABLED": "true"})
    try:
        process.start()
        process.server.post("/work_pools/", {"name": "team", "type": "process"})
        yield process.server
    finally:
        process.end()


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory, server: PrefectServer) -> Searches:
    """A search that has run, some of whose trials worked at their second retry; and two deployments."""
    folder = tmp_path_factory.mktemp("watched")
    searches = Searches(folder, server)
    searches.write(
        "digits",
        space={"target": "watched_spaces.py:unlucky", "params": {"marks": str(folder / "marks")}},
        evaluator={
            "kind": "classification",
            "data": DATA,
            "epochs": 3,
            "optimizer": {"name": "adamw", "lr": {"float": [1e-3, 1e-2], "log": True}},
        },
        strategy={"kind": "grid", "float_steps": 1},
        budget={"rounds": ROUNDS, "trials_per_round": TRIALS},
        retry={"delay_seconds": [0.1]},
        training_service={"kind": "local", "slots": 2},
    )
    searches.write("alike", **ALIKE)
    searches.run("run", "digits.yaml")
    for name in ("digits", "alike"):
        searches.run("deploy", f"{name}.yaml", "--work-pool", "team")
    return searches


@pytest.fixture(scope="module")
def page(chromium: "Browser", searches: Searches) -> Iterator["Page"]:
    """The server's address, opened."""
    from playwright.sync_api import expect

    with watched_page(chromium, viewport={"width": 1280, "height": 720}) as watched:
        expect.set_options(timeout=PATIENCE)
        watched.page.set_default_timeout(PATIENCE)
        watched.page.goto(searches.server.url.removesuffix("/api"))
        expect(watched.page).to_have_url(re.compile("/v2/"))
        yield watched.page


def open_run(page: "Page", name: str) -> None:
    open_listed(page, "runs", "/runs/flow-run/", name)


def open_form(page: "Page", deployment: str) -> None:
    open_listed(page, "deployments", "/deployments/deployment/", deployment)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    field(page, "Seed (Optional)").wait_for()


def open_listed(page: "Page", place: str, to: str, name: str) -> None:
    """Follow the link to something in a list, loaded anew: a click in the menu leaves the page before for a while."""
    page.goto(urljoin(page.url, f"/v2/{place}"))
    page.locator(f"a[href*='{to}']").get_by_text(name, exact=True).first.click()


def field(page: "Page", label: str) -> "Locator":
    return page.get_by_label(label, exact=True)


def submit(page: "Page") -> int:
    """Send the form; what the server says, once it is not too busy to."""
    while True:
        with page.expect_response(re.compile("/create_flow_run$")) as asked:
            page.get_by_role("button", name="Submit").click()
        if asked.value.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return asked.value.status


def runs_of(server: PrefectServer, deployment: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = server.post("/flow_runs/filter", {"deployments": {"name": {"any_": [deployment]}}})
    return runs


def retried_run(server: PrefectServer) -> dict[str, Any]:
    """A task run that worked when it was tried again. The server records task runs some seconds after they happen."""
    completed = {"name": {"like_": "alone"}, "state": {"type": {"any_": ["COMPLETED"]}}}
    deadline = time.monotonic() + PATIENCE / 1000
    while True:
        found = server.post("/task_runs/filter", {"task_runs": completed})
        for run in found:
            if run["run_count"] == 2:
                return run
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_the_run_page_shows_the_rounds_as_subflows(page, searches, screenshots):
    open_run(page, "digits")
    page.get_by_role("tab", name="Subflow Runs").click()
    for number in range(ROUNDS):
        page.get_by_role("link", name=f"digits: round {number}").first.wait_for()
    page.get_by_text(f"{ROUNDS} Subflow runs").wait_for()
    page.mouse.move(0, 0)
    page.screenshot(path=screenshots / "run-page.png")


def test_a_retried_trial_shows_its_retries_and_why(page, searches, screenshots):
    run = retried_run(searches.server)
    number = re.search(r"of round (\d+)", run["name"])[1]
    open_run(page, f"digits: round {number}")
    page.get_by_role("tab", name="Task Runs").click()
    page.get_by_role("link", name=run["name"]).click()
    page.get_by_text("this candidate raises").first.wait_for()
    facts = dict(
        page.locator("dl:visible").evaluate_all("found => found.map(one => [...one.children].map(at => at.innerText))")
    )
    assert (facts["Run Count"], facts["Retries"]) == ("2", "2")
    page.screenshot(path=screenshots / "retried-trial.png")


def test_the_leaderboard_is_an_artifact_of_the_run(page, searches, screenshots):
    open_run(page, "digits")
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_role("heading", name="digits-leaderboard").click()
    page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$")).first.click()
    table = page.get_by_test_id("table-display").locator("table")
    table.wait_for()
    headings = table.locator("th").all_inner_texts()
    first = dict(zip(headings, table.locator("tbody tr").first.locator("td").all_inner_texts(), strict=True))
    best = searches.json("leaderboard", "digits")[0]
    assert float(first["val_accuracy"]) == best["val_accuracy"]
    assert first["trial"] == str(best["trial"])
    page.screenshot(path=screenshots / "leaderboard.png")


def test_the_form_shows_every_field_with_its_description(page, searches, screenshots):
    open_form(page, "digits")
    labels = page.locator("label").evaluate_all(
        "found => found.map(one => [one.textContent, one.parentElement.querySelector('p')?.textContent])"
    )
    shown = [(label, about) for label, about in labels if label not in PREFECTS_OWN]
    config = load_config(searches.folder / "digits.yaml")
    assert Counter(shown) == Counter([*PARAMETERS, *fields_of(config)])
    page.get_by_text("Strategy (Optional)", exact=True).evaluate("label => label.scrollIntoView()")
    page.screenshot(path=screenshots / "deployment-form.png")


def fields_of(section: Section) -> Iterator[tuple[str, str]]:
    """Label and description of every field of a section as it stands, and of the sections in it."""
    schema = type(section).model_json_schema()
    for name, property in schema["properties"].items():
        section_there = schema.get("$defs", {}).get(property.get("$ref", "").removeprefix("#/$defs/"), {})
        about = {**section_there, **property}
        optional = "" if name in schema.get("required", []) else " (Optional)"
        yield about["title"] + optional, about["description"]
        value = getattr(section, name)
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Section):
                yield from fields_of(part)


def test_the_form_refuses_a_bad_value(page, searches, screenshots):
    open_form(page, "digits")
    field(page, "Trials per round (Optional)").fill("0")
    assert submit(page) == HTTPStatus.CONFLICT
    page.get_by_text("0 is less than or equal to the minimum of 0", exact=True).wait_for()
    page.screenshot(path=screenshots / "refused-value.png")
    assert not runs_of(searches.server, "digits")


def test_the_form_takes_a_strategy_of_another_kind(page, searches):
    open_form(page, "digits")
    page.get_by_role("tab", name="Evolution", exact=True).click()
    field(page, "Population (Optional)").fill("8")
    assert submit(page) == HTTPStatus.CREATED
    page.get_by_role("tab", name="Upcoming").wait_for()
    (run,) = runs_of(searches.server, "digits")
    strategy = SearchConfig.model_validate(run["parameters"]["config"]).strategy
    assert strategy.model_dump() == {"kind": "evolution", "population": 8, "tournament": 8, "crossover": 0.0}


def test_a_form_that_is_sent_as_it_opens_changes_nothing(page, searches):
    open_form(page, "alike")
    chosen = page.locator("[role=tab][aria-selected=true]").all_inner_texts()
    assert {"Regression", "Grid", "Halving pruner", "Debug service"} <= set(chosen)
    assert submit(page) == HTTPStatus.CREATED
    page.get_by_role("tab", name="Upcoming").wait_for()
    (run,) = runs_of(searches.server, "alike")
    (deployment,) = searches.server.post("/deployments/filter", {"deployments": {"name": {"any_": ["alike"]}}})
    assert run["parameters"] == {**deployment["parameters"], "budget": None}
