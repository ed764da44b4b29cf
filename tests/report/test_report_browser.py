"""The HTML report in a real browser: every plot is drawn, nothing is fetched, nothing goes wrong, and it is quick."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Watched, watched_page
from report_facts_made import EVIL, empty, hostile, large

from nasflow.report.html_data import StudyFacts
from nasflow.report.html_page import study_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRACES = "plots => plots.map(plot => plot.data.map(trace => trace.type))"


@contextmanager
def opened(browser: "Browser", facts: StudyFacts, folder: Path, **options: Any) -> Iterator[Watched]:
    """The report of a study in a page that is cut off from the network, all of it drawn."""
    file = folder / "report.html"
    file.write_text(study_page(facts))
    with watched_page(browser, offline=True, **options) as watched:
        watched.page.set_default_timeout(200_000)
        watched.page.goto(file.as_uri())
        watched.page.wait_for_selector("html[data-drawn]", state="attached")
        yield watched


def assert_in_order(watched: Watched) -> None:
    assert watched.errors == [] and watched.requests == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn(chromium: "Browser", screenshots: Path, tmp_path: Path, scheme: str) -> None:
    with opened(chromium, hostile(), tmp_path, color_scheme=scheme) as watched:
        page = watched.page
        assert_in_order(watched)
        kinds = page.eval_on_selector_all(".js-plotly-plot", TRACES)
        assert [len(traces) for traces in kinds] == [5, 5, 11, 2, 2, 1, 2, 5]
        assert kinds[5] == ["parcoords"] and page.locator("#choices canvas").count() > 0
        assert page.locator("text=WebGL is not supported").count() == 0
        titles = page.eval_on_selector_all(".modebar-btn", "buttons => buttons.map(button => button.dataset.title)")
        assert "Zoom in" in titles and not [title for title in titles if "loud" in title], "nothing is sent anywhere"
        drawn = page.eval_on_selector_all(".js-plotly-plot", "plots => plots.map(plot => plot.offsetHeight)")
        assert min(drawn) > 100
        assert page.locator(".scatterlayer .trace").count() == 23 and page.locator("svg.model rect").count() == 4
        page.screenshot(path=screenshots / f"report-{scheme}.png", full_page=True)


def test_hostile_words_are_shown_and_not_run(chromium: "Browser", tmp_path: Path) -> None:
    with opened(chromium, hostile(), tmp_path) as watched:
        page = watched.page
        page.locator(".parcoords").scroll_into_view_if_needed()
        shown = page.locator(".js-plotly-plot").all_inner_texts()
        assert any(EVIL[:14] in text for text in shown), "at an axis, as it is"
        page.locator("#time-line .barlayer .point path").nth(1).hover(force=True)
        page.wait_for_selector("#time-line .hovertext")
        assert EVIL[:14] in page.locator("#time-line .hovertext").first.inner_text()
        page.locator("#merging details summary").click()
        assert EVIL in page.locator("#merging").inner_text()
        assert page.locator("img").count() == 0 and page.title() == "hostile · nasflow"
        assert_in_order(watched)


def test_the_page_forbids_what_it_does_not_need(chromium: "Browser", tmp_path: Path) -> None:
    """Even if a word of a study were HTML some day, it could neither run nor fetch."""
    with opened(chromium, empty(), tmp_path) as watched:
        page = watched.page
        assert_in_order(watched)
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b id=evil onclick=\"document.title=1\">x</b>')")
        page.evaluate("document.getElementById('evil').click()")
        assert page.title() == "hostile · nasflow"
        assert any("Content Security Policy" in error for error in watched.errors)


def test_it_follows_the_colors_of_the_system(chromium: "Browser", tmp_path: Path) -> None:
    with opened(chromium, hostile(), tmp_path, color_scheme="light") as watched:
        page = watched.page
        color = "plots => plots[0].layout.font.color"
        light = page.eval_on_selector_all(".js-plotly-plot", color)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"([before]) => ({color})(document.querySelectorAll('.js-plotly-plot')) !== before",
                               arg=[light])  # fmt: skip
        assert_in_order(watched)


def test_a_narrow_window_needs_no_scrolling_sideways(chromium: "Browser", tmp_path: Path) -> None:
    with opened(chromium, hostile(), tmp_path, viewport={"width": 390, "height": 800}) as watched:
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert_in_order(watched)


def test_5000_trials_are_drawn_in_less_than_5_seconds(
    chromium: "Browser", screenshots: Path, tmp_path: Path, record_property: Any
) -> None:
    """Of the page's own thread, for others may want the processor, too."""
    file = tmp_path / "report.html"
    file.write_text(study_page(large(5_000)))
    with watched_page(chromium, offline=True) as watched:
        page = watched.page
        page.set_default_timeout(200_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        record_property("wall_milliseconds", page.locator("html").get_attribute("data-drawn"))
        record_property("thread_seconds", metrics["TaskDuration"])
        assert 0.1 < metrics["TaskDuration"] < 5
        assert page.locator(".js-plotly-plot").count() == 5
        assert page.locator("#history .point").count() > 5_000
        assert_in_order(watched)
        page.screenshot(path=screenshots / "report-5000.png", full_page=True)
