"""The HTML report in a real browser: every plot is drawn, nothing is fetched, nothing goes wrong, and it is quick."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nasflow.report.html.data import StudyFacts
from nasflow.report.html.page import study_page
from tests.browser import Watched, watched_page
from tests.report.facts import EVIL, empty, hostile, large

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TITLE = "hostile · nasflow"
TRACES = "plots => plots.map(plot => plot.data.map(trace => trace.type))"
SECONDS = 200  # for a machine on which much else runs


@contextmanager
def opened(browser: "Browser", facts: StudyFacts, folder: Path, measured: bool = False) -> Iterator[Watched]:
    """The report of a study in a page that is cut off from the network, all of it drawn."""
    file = folder / "report.html"
    file.write_text(study_page(facts))
    with watched_page(browser, offline=True, color_scheme="light") as watched:
        watched.page.set_default_timeout(1000 * SECONDS)
        if measured:
            session = watched.page.context.new_cdp_session(watched.page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
        watched.page.goto(file.as_uri())
        watched.page.wait_for_selector("html[data-drawn]", state="attached")
        if measured:
            found = session.send("Performance.getMetrics")["metrics"]
            watched.metrics = {each["name"]: each["value"] for each in found}
        yield watched


@pytest.fixture(scope="module")
def watched(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A study whose words are all hostile."""
    with opened(chromium, hostile(), tmp_path_factory.mktemp("hostile")) as watched:
        yield watched


@pytest.fixture(autouse=True)
def nothing_goes_wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    """No error on the page's console, no request to anywhere."""
    yield
    if "watched" in request.fixturenames:
        watched = request.getfixturevalue("watched")
        assert watched.errors == [] and watched.requests == []


def until(page: "Page", condition: str) -> None:
    """Wait for it in the page, which lets no string be evaluated there, as Playwright's own waiting would."""
    page.evaluate(f"new Promise(done => setInterval(() => {condition} && done(), 50))")


def test_every_plot_is_drawn(watched: Watched, screenshots: Path) -> None:
    page = watched.page
    kinds = page.eval_on_selector_all(".js-plotly-plot", TRACES)
    assert [len(traces) for traces in kinds] == [5, 5, 11, 2, 2, 1, 2, 5] and kinds[5] == ["parcoords"]
    heights = page.eval_on_selector_all(".js-plotly-plot", "plots => plots.map(plot => plot.offsetHeight)")
    assert min(heights) > 100
    drawn = {
        ".scatterlayer .trace": 23, "#choices canvas": 3, "#choices .y-axis": 7, ".barlayer .point": 17,
        "svg.model rect": 4, "text=WebGL is not supported": 0,
    }  # fmt: skip
    assert {what: page.locator(what).count() for what in drawn} == drawn
    page.screenshot(path=screenshots / "report-light.png", full_page=True)


def test_no_button_sends_anything_away(watched: Watched) -> None:
    titles = "buttons => buttons.map(button => button.dataset.title)"
    assert set(watched.page.eval_on_selector_all(".modebar-btn", titles)) == {
        "Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Autoscale", "Reset axes",
    }  # fmt: skip


def test_hostile_words_are_shown_and_not_run(watched: Watched) -> None:
    page = watched.page
    texts = page.eval_on_selector_all(".js-plotly-plot", "plots => plots.map(plot => plot.textContent)")
    assert sum(EVIL[:11] in text for text in texts) == 3, "at axes, as they are"
    page.locator("#time-line .barlayer .point path").nth(1).hover(force=True)
    page.wait_for_selector("#time-line .hovertext")
    assert EVIL[:11] in (page.locator("#time-line .hovertext").first.text_content() or "")
    page.locator("#merging details summary").click()
    assert EVIL in page.locator("#merging").inner_text()
    assert page.locator("img").count() == 0 and page.title() == TITLE


def test_it_follows_the_colors_of_the_system(watched: Watched, screenshots: Path) -> None:
    page = watched.page
    color = "document.querySelector('.js-plotly-plot').layout.font.color"
    light = page.evaluate(color)
    page.emulate_media(color_scheme="dark")
    until(page, f"{color} !== {light!r}")
    page.screenshot(path=screenshots / "report-dark.png", full_page=True)


def test_a_narrow_window_needs_no_scrolling_sideways(watched: Watched) -> None:
    watched.page.set_viewport_size({"width": 390, "height": 800})
    until(watched.page, "document.documentElement.scrollWidth <= innerWidth")


def test_a_page_forbids_what_it_does_not_need(chromium: "Browser", tmp_path: Path) -> None:
    """Even if a word of a study were HTML some day, it could neither run nor fetch."""
    with opened(chromium, empty(), tmp_path) as nothing:
        page = nothing.page
        assert nothing.errors == []
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b id=evil onclick=\"document.title=1\">x</b>')")
        page.evaluate("document.getElementById('evil').click()")
        assert page.title() == TITLE
        assert any("Content Security Policy" in error for error in nothing.errors)


@pytest.mark.long
def test_5000_trials_are_drawn_in_less_than_5_seconds(
    chromium: "Browser", screenshots: Path, tmp_path: Path, record_property: Any
) -> None:
    """Of the page's own thread, for others may want the processor, too."""
    with opened(chromium, large(5_000), tmp_path, measured=True) as big:
        seconds = big.metrics["TaskDuration"]
        record_property("seconds", seconds)
        assert 0.1 < seconds < 5
        assert big.page.locator(".js-plotly-plot").count() == 5
        assert big.page.locator("#history .point").count() > 5_000
        assert big.errors == [] and big.requests == []
        big.page.screenshot(path=screenshots / "report-5000.png", full_page=True)
