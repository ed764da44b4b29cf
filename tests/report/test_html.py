"""The HTML report: what is in it, that no word of a study is ever HTML, and how it says that something is missing."""

import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from nasflow.report.html.page import study_page
from nasflow.report.html.parts import config_yaml, table
from nasflow.report.html.plot import thinned
from nasflow.report.html.timeline import seconds_text
from nasflow.space.architecture import Architecture
from nasflow.trial import Trial
from tests.report.facts import EVIL, config, empty, hostile, large


class Page(HTMLParser):
    """A page as a browser's parser takes it: sections with their text and the names of their plots, tags, figures."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self.plots: dict[str, list[str]] = defaultdict(list)
        self.figures: dict[str, dict[str, Any]] = {}
        self._section, self._figure = "", None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "section":
            self._section = dict(attributes)["id"] or ""
            self.sections[self._section] = ""
        if name := dict(attributes).get("data-figure"):
            self.plots[self._section].append(name)
        self._figure = dict(attributes).get("id") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.sections[self._section] += data
        elif self._figure:
            self.figures[self._figure] = json.loads(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(study_page(hostile()))


def test_no_word_of_a_study_is_html(page: Page) -> None:
    text = study_page(hostile())
    assert page.named("img") == [] and EVIL not in text
    assert "onerror=document" in text, "it is there, escaped"
    assert [script for script in page.named("script") if "src" in script] == []
    assert {name for _, attributes in page.tags for name in attributes if name.startswith("on")} == set()
    for section in ("", "leaderboard", "failures", "rounds", "best-architectures", "merging", "config"):
        assert EVIL in page.sections[section], section
    assert EVIL not in json.dumps(page.figures), "Plotly takes `<` for a tag"
    for title in ("history", "pareto-front", "choices", "merging", "time-line"):
        assert any("&lt;/script&gt;" in json.dumps(page.figures[name]) for name in page.plots[title]), title


def test_epochs_of_promoted_trials_are_counted_once() -> None:
    trials = [
        Trial(number=number, round=0, architecture=Architecture({"stop_after": epochs}), seed=1, epochs=epochs)
        for number, epochs in enumerate([1, 3, 9])
    ]
    text = Page(study_page(replace(empty(), trials=trials))).sections[""]
    assert re.search(r"epochs trained\s*9\b", text.replace("wall", " wall"))


def test_no_word_of_a_model_is_html() -> None:
    (text,) = re.findall(r'<svg xmlns="[^"]*" class="model".*?</svg>', study_page(hostile()), re.DOTALL)
    model = list(ET.fromstring(text).iter())
    assert {element.tag.rpartition("}")[2] for element in model} == {"svg", "g", "title", "rect", "text", "tspan"}
    assert any(f"{EVIL}({EVIL})" in (element.text or "") for element in model)


def test_no_metric_is_html() -> None:
    facts = hostile()
    renamed = {t.number: t.model_copy(update={"metrics": {EVIL: t.metrics["val_accuracy"]}}) for t in facts.scored}
    page = Page(
        study_page(
            replace(
                facts,
                config=config(objectives=[{"metric": EVIL, "direction": "maximize"}]),
                trials=[renamed.get(t.number, t) for t in facts.trials],
                best=[renamed[t.number] for t in facts.best],
                curves={number: [(1, {EVIL: 0.5}), (2, {EVIL: 0.75})] for number in facts.curves},
            )
        )
    )
    assert page.named("img") == []
    assert EVIL in page.sections[""] and EVIL in page.sections["leaderboard"]
    assert EVIL not in json.dumps(page.figures)
    for title in ("history", "learning-curves", "choices"):
        assert any("&lt;/script&gt;" in json.dumps(page.figures[name]) for name in page.plots[title]), title


def test_it_needs_nothing_from_elsewhere(page: Page) -> None:
    assert page.named("link") == [] and page.named("iframe") == []
    policy = next(meta["content"] for meta in page.named("meta") if meta.get("http-equiv"))
    assert policy and "default-src 'none'" in policy and "'unsafe-inline'" not in policy.split("style-src")[0]
    assert len(re.findall(r"'sha256-", policy)) == len([s for s in page.named("script") if "type" not in s]) == 2


def test_every_figure_is_one_that_plotly_knows(page: Page) -> None:
    for figure in page.figures.values():
        go.Figure(figure)  # refuses every attribute and value that there is not


def test_every_section_has_its_figures(page: Page) -> None:
    kinds = {name: [trace["type"] for trace in figure["data"]] for name, figure in page.figures.items()}
    assert list(kinds.values()) == [
        ["scatter"] * 5, ["scatter"] * 5,  # history: trained, replayed, best so far, new best, failed
        ["scatter"] * 11,  # curves: the others in grey, and ten
        ["scatter"] * 2,  # Pareto front
        ["bar"] * 2,  # importance, by objective
        ["parcoords"],
        ["bar"] * 2,  # merged and one by one
        ["bar"] * 5,  # time line
    ]  # fmt: skip
    places = [attributes["data-figure"] for attributes in page.named("div") if attributes.get("class") == "plot"]
    assert places == list(kinds)


def traces(page: Page, number: int) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in page.figures[f"figure{number}"]["data"]}


def test_history_tells_best_replayed_and_failed(page: Page) -> None:
    of_accuracy = traces(page, 0)
    assert of_accuracy["failed"]["x"] == [9, 19, 29, 39, 49, 59]
    assert of_accuracy["known results replayed"]["x"] == [58]
    values = of_accuracy["best so far"]["y"]
    assert values == sorted(values) and of_accuracy["best so far"]["x"][-1] == 59
    of_parameters = traces(page, 1)["best so far"]["y"]
    assert of_parameters == sorted(of_parameters, reverse=True)


def test_the_pareto_front_is_the_front(page: Page) -> None:
    front = traces(page, 3)["Pareto front"]
    points = list(zip(front["x"], front["y"], strict=True))
    rest = list(zip(traces(page, 3)["dominated"]["x"], traces(page, 3)["dominated"]["y"], strict=True))
    assert len(points) + len(rest) == 54 and points == sorted(points)
    assert all(any(x <= a and y >= b and (x, y) != (a, b) for x, y in points) for a, b in rest)


def test_parallel_coordinates_show_absent_choices_below(page: Page) -> None:
    trace = page.figures["figure5"]["data"][0]
    axes = {axis["label"]: axis for axis in trace["dimensions"]}
    assert list(axes)[1:] == ["depth", "lr", "used", "width1", "val_accuracy", "parameters"]
    assert axes["width1"]["ticktext"] == ["none", "8", "16", "32"] and axes["width1"]["tickvals"] == [-1, 0, 1, 2]
    assert len(axes["width1"]["values"]) == 54 and -1 in axes["width1"]["values"]
    assert axes["lr"]["range"] == [pytest.approx(-3.96, abs=0.1), pytest.approx(-1.0, abs=0.1)], "by its logarithm"


def test_importance_finds_what_matters() -> None:
    shares = [traces(Page(study_page(large(400))), 2)["val_accuracy"]]
    assert sum(shares[0]["x"]) == pytest.approx(1, abs=1e-6)
    assert set(shares[0]["y"]) == {"depth", "width0", "width1", "width2", "activation", "dropout"}


def test_the_time_line_has_a_lane_for_each_job_of_a_time(page: Page) -> None:
    line = page.figures["figure7"]
    assert sorted(trace["name"] for trace in line["data"]) == [
        "cancelled, a retry", "failed because of its trials", "lost with its machine", "running", "succeeded, a retry",
    ]  # fmt: skip
    rows = {trace["name"]: trace["y"] for trace in line["data"]}
    assert rows["lost with its machine"] != rows["failed because of its trials"], "both were on host-a at the same time"
    assert line["layout"]["yaxis"]["ticktext"][1:] == ["host-a", "host-b", "unknown"]
    running = next(trace for trace in line["data"] if trace["name"] == "running")
    assert running["x"] == [1e3 * 55 * 60], "up to the report"


def test_the_merging_section_tells_speed_and_reasons(page: Page) -> None:
    text = page.sections["merging"]
    assert "5 of 7 trials merged into 2 units" in text and "2.50 times as fast" in text
    assert "2.50 times" in page.sections[""], "in the header, too"


def test_the_header_and_the_config(page: Page) -> None:
    header = page.sections[""]
    assert "54 trained" in header and "6 failed" in header and "4 min 32 s" in header
    text = page.sections["config"]
    assert "in-the-clear" not in text and "api_key: '***'" in text
    assert "digits" not in config_yaml(config(store="postgresql://digits:secret@host/db"))
    target = {"target": "nasflow.space.ready:mlp", "params": {"url": "https://me:pw@host/x", "password": {"env": "P"}}}
    shown = config_yaml(config(space=target))
    assert "https://me:***@host/x" in shown and "env: P" in shown


@pytest.mark.parametrize("objectives", [1, 2])
def test_an_empty_study_says_what_is_missing(objectives: int) -> None:
    both = [{"metric": "val_accuracy"}, {"metric": "val_loss", "direction": "minimize"}]
    page = Page(study_page(empty(objectives=both[:objectives])))
    assert page.figures == {}
    for section in ("leaderboard", "history", "learning-curves", "choices", "best-architectures", "merging"):
        assert re.search(r"No |can be compared once", page.sections[section]), section
    assert ("pareto-front" in page.sections) == (objectives == 2)
    assert "No job has run yet" in page.sections["time-line"] and "0 trials" not in page.sections[""]


def test_an_unfinished_study_shows_what_there_is() -> None:
    facts = hostile(15)
    assert len(facts.scored) == 14
    page = Page(study_page(facts))
    assert "14 trials have a score; the importance of choices needs at least 20" in page.sections["choices"]
    assert "parcoords" in {trace["type"] for figure in page.figures.values() for trace in figure["data"]}


def test_a_large_study_is_thinned_and_says_so() -> None:
    text = study_page(large(5_000))
    page = Page(text)
    assert len(text) < 8_000_000
    assert "1,000 are drawn" in page.sections["choices"] and "210 are drawn" in page.sections["learning-curves"]
    (lines,) = (t for figure in page.figures.values() for t in figure["data"] if t["type"] == "parcoords")
    assert {len(axis["values"]) for axis in lines["dimensions"]} == {1_000}
    top = max(t.metrics["val_accuracy"] for t in large(5_000).scored)
    assert lines["line"]["color"][-1] == top, "the best is drawn, on top"


def test_small_parts() -> None:
    assert thinned(range(10), 4) == [0, 3, 6, 9] and thinned([1, 2], 4) == [1, 2]
    times = {0.44: "0.4 s", 59.6: "60 s", 200: "3 min 20 s", 3600: "1 h", 18_180: "5 h 3 min", 187_200: "2 d 4 h"}
    assert {seconds: seconds_text(seconds) for seconds in times} == times
    assert table([]) == ""
    assert "note" not in table([{"trial": 1, "note": ""}]), "a column without a value"
