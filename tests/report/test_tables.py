"""Leaderboard, summaries and curves of hand-made trials."""

import base64
import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nasflow.config.search import Objective
from nasflow.report.curves import Curves, curves_figure, curves_markdown
from nasflow.report.leaderboard import leaderboard_markdown, leaderboard_rows, leaderboard_table
from nasflow.report.summary import epochs_trained, round_summary_markdown, search_summary_markdown
from nasflow.report.svg import curves_svg
from nasflow.report.text import architecture_text, error_headline, markdown_cell, markdown_table
from nasflow.space.architecture import Architecture
from nasflow.trial import Trial, TrialStatus

ACCURACY = [Objective(metric="acc")]
BOTH = [Objective(metric="acc"), Objective(metric="parameters", direction="minimize")]


def trial(number: int, metrics: dict[str, float] | None = None, **changes: Any) -> Trial:
    status = TrialStatus.TRAINED if metrics else TrialStatus.SUBMITTED
    values = {"round": 0, "seed": 1, "status": status, "metrics": metrics or {}, "epochs": 4 if metrics else 0}
    architecture = changes.pop("architecture", {"width": number, "ops": ["conv3", "a|b"]})
    return Trial(number=number, architecture=Architecture(architecture), **{**values, **changes})


TRIALS = [
    trial(3, {"acc": 0.97, "parameters": 12345.0}),
    trial(1, {"acc": 0.9, "parameters": 100.0}, status=TrialStatus.STOPPED_EARLY, epochs=2),
    trial(7, {"acc": 0.5, "parameters": 200.0}, replayed_from=2, round=1),
]


def cells(markdown: str) -> list[list[str]]:
    """The cells of the one table in a Markdown text, head first."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if "---" not in line]


def test_rows_of_one_objective() -> None:
    assert leaderboard_rows(TRIALS, ACCURACY, 2) == [
        {
            "rank": 1, "trial": 3, "round": 0, "acc": 0.97, "parameters": 12345, "epochs": 4, "note": "",
            "architecture": "width=3, ops=[conv3 a|b]",
        },
        {
            "rank": 2, "trial": 1, "round": 0, "acc": 0.9, "parameters": 100, "epochs": 2, "note": "stopped early",
            "architecture": "width=1, ops=[conv3 a|b]",
        },
    ]  # fmt: skip
    assert leaderboard_rows(TRIALS, ACCURACY, 9)[2]["note"] == "replayed from trial 2"


def test_rows_of_several_objectives_have_fronts() -> None:
    assert [(row["trial"], row["front"]) for row in leaderboard_rows(TRIALS, BOTH, 9)] == [(3, 1), (1, 1), (7, 2)]


@given(st.lists(st.dictionaries(st.sampled_from(["acc", "parameters"]), st.floats(), max_size=2), max_size=4))
def test_rows_are_json_whatever_the_numbers(metrics: list[dict[str, float]]) -> None:
    trials = [trial(number, values) for number, values in enumerate(metrics)]
    rows = leaderboard_rows(trials, ACCURACY, 10)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    for row, values in zip(rows, metrics, strict=True):
        value = values.get("acc", math.nan)
        assert row["acc"] == (value if math.isfinite(value) else None)


def test_leaderboard_markdown_is_one_table() -> None:
    head, *rows = cells(leaderboard_markdown(TRIALS, BOTH, 10))
    assert head[:3] == ["rank", "front", "trial"] and len(rows) == 3
    assert rows[0][4:6] == ["0.97", "12,345"]
    assert rows[0][-1] == r"width=3, ops=[conv3 a\|b]"
    assert {len(row) for row in rows} == {len(head)}
    assert "No trial has a score yet" in leaderboard_markdown([], ACCURACY, 10)


def test_leaderboard_table_shows_brackets_as_they_are() -> None:
    file = io.StringIO()
    Console(file=file, width=160).print(leaderboard_table(TRIALS, ACCURACY, 10))
    assert "maximize acc" in file.getvalue() and "ops=[conv3 a|b]" in file.getvalue() and "12,345" in file.getvalue()
    file = io.StringIO()
    Console(file=file, width=160).print(leaderboard_table([], ACCURACY, 10))
    assert "no trial has a score yet" in file.getvalue()


def test_words() -> None:
    assert architecture_text({"lr": 0.0012346, "long": "x" * 50}, 30) == "lr=0.001235, long=" + "x" * 11 + "…"
    assert error_headline("ValueError: bad\n  at line 3") == "ValueError: bad"
    assert error_headline("Traceback (most recent call last):\n  File\nKeyError: 'a'\n") == "KeyError: 'a'"
    assert error_headline(None) == error_headline(" \n") == "no error text"
    assert markdown_table([{"a": "x|y\nz", "b": "<b>"}]).splitlines()[-1] == r"| x\|y z | &lt;b> |"
    assert markdown_table([]) == ""


FAILED = [
    trial(10, status=TrialStatus.FAILED, error="ValueError: shapes\nmore", round=1),
    trial(11, status=TrialStatus.FAILED, error="loss is nan", round=1),
    trial(12, status=TrialStatus.INVALID, error="loss is nan", round=1),
]


@pytest.mark.parametrize("text", ["![x](http://there/pixel.png)", "a ![x][ref]", r"\![x](y)"])
def test_an_image_in_a_cell_loads_nothing(text: str) -> None:
    assert re.search(r"!\[", markdown_cell(text)) is None


def test_round_summary() -> None:
    text = round_summary_markdown(1, [*TRIALS, *FAILED], ACCURACY)
    assert text.startswith("# Round 1\n")
    assert "6 trials: 2 trained, 1 stopped early, 2 failed, 1 invalid; 1 replayed from known results." in text
    assert "6 epochs trained" in text  # the replayed one's were not
    assert "best acc: **0.97**, trial 3" in text
    trials, failures = text.split("## Failures")
    assert [row[0] for row in cells(trials)[1:]] == ["3", "1", "7", "10", "11", "12"]
    assert cells(failures)[1:] == [["2", "11, 12", "loss is nan"], ["1", "10", "ValueError: shapes"]]


PROMOTED = [
    trial(number, {"acc": 0.5}, architecture={"width": width, "stop_after": epochs}, epochs=epochs, round=round)
    for number, (width, epochs, round) in enumerate([(8, 1, 0), (9, 1, 0), (8, 3, 1), (8, 9, 2)])
]


def test_epochs_from_which_a_promoted_trial_went_on_are_counted_once() -> None:
    assert epochs_trained(PROMOTED) == 10
    assert "10 epochs trained" in search_summary_markdown("s", PROMOTED, ACCURACY)
    assert "6 epochs trained" in round_summary_markdown(2, PROMOTED[3:], ACCURACY, carried=3)


def test_round_summary_without_a_score_or_a_trial() -> None:
    assert "best" not in round_summary_markdown(0, FAILED, ACCURACY)
    assert "0 trials: none" in round_summary_markdown(0, [], ACCURACY)


def test_long_summaries_are_capped() -> None:
    trials = [trial(n, status=TrialStatus.FAILED, error=f"error {n}", round=n) for n in range(300)]
    text = round_summary_markdown(0, trials, ACCURACY)
    assert "200 more trials" in text and "280 other errors" in text and len(text) < 20_000
    assert len(search_summary_markdown("s", trials, ACCURACY)) < 20_000


def test_search_summary_has_a_row_a_round() -> None:
    text = search_summary_markdown("digits", [*TRIALS, *FAILED], BOTH)
    assert text.startswith("# digits\n")
    assert cells(text.split("## Failures")[0]) == [
        ["round", "trials", "scored", "failed", "best acc", "best parameters"],
        ["0", "2", "2", "0", "0.97", "100"],
        ["1", "4", "1", "3", "0.5", "200"],
    ]
    assert "best parameters: **100**, trial 1" in text


CURVES = {
    3: [(1, {"acc": 0.5}), (2, {"acc": None}), (3, {"acc": 0.75})],
    1: [(1, {"acc": 0.25}), (2, {"acc": math.inf}), (3, {})],
    2: [(1, {"loss": 1.0})],
}


def test_curves_figure_has_a_line_a_trial_with_gaps() -> None:
    figure = curves_figure(CURVES, "acc")
    assert [(line.name, line.x, line.y) for line in figure.data] == [
        ("trial 3", (1, 2, 3), (0.5, None, 0.75)),
        ("trial 1", (1, 2), (0.25, None)),
    ]
    assert figure.layout.yaxis.title.text == "acc"
    assert '"acc"' in figure.to_json()


def test_curves_markdown_has_a_picture_and_a_table() -> None:
    text = curves_markdown(CURVES, "acc")
    assert cells(text) == [
        ["trial", "epoch 1", "epoch 2", "epoch 3"],
        ["3", "0.5", "", "0.75"],
        ["1", "0.25", "", ""],
    ]
    picture = re.search(r"\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", text)
    assert picture
    root = ET.fromstring(base64.b64decode(picture[1]))
    lines = [path.attrib["d"] for path in root.iter("{http://www.w3.org/2000/svg}path")][1:]
    assert [line.count("M") for line in lines] == [2, 1]  # the gap cuts the first in two
    assert "No epoch has this metric" in curves_markdown(CURVES, "other")


def test_long_curves_show_a_dozen_epochs_and_ten_trials() -> None:
    curves = {n: [(epoch, {"acc": epoch / 100}) for epoch in range(1, 101)] for n in range(30)}
    head, *rows = cells(curves_markdown(curves, "acc"))
    assert head[1] == "epoch 1" and head[-1] == "epoch 100" and len(head) == 13 and len(rows) == 10
    assert rows[0][-1] == "1"


def test_curves_of_epochs_that_are_validated_now_and_then_have_no_gaps() -> None:
    curves: Curves = {
        0: [(epoch, {"loss": 1.0} | ({} if epoch % 5 else {"acc": epoch / 100})) for epoch in range(1, 101)]
    }
    head, row = cells(curves_markdown(curves, "acc"))
    epochs = [5, 15, 20, 30, 40, 50, 55, 65, 75, 85, 90, 100]
    assert head == ["trial", *(f"epoch {epoch}" for epoch in epochs)]
    assert row == ["0", *(str(epoch / 100).removesuffix(".0") for epoch in epochs)]
    (line,) = curves_figure(curves, "acc").data
    assert line.x == tuple(range(5, 101, 5)) and None not in line.y


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [None, 2.0], [1e-9, 1e9]])
def test_svg_stays_in_its_frame(values: list[float | None]) -> None:
    text = curves_svg({0: list(enumerate(values, 1))}, "a < b & c")
    root = ET.fromstring(text)
    line = list(root.iter("{http://www.w3.org/2000/svg}path"))[1].attrib["d"]
    points = [tuple(map(float, point)) for point in re.findall(r"([\d.]+),([\d.]+)", line)]
    assert len(points) == sum(value is not None for value in values)
    assert all(0 <= x <= 640 and 0 <= y <= 300 for x, y in points)


def test_reports_take_no_torch_and_no_plotly_to_import() -> None:
    code = (
        "import sys, nasflow.report.leaderboard, nasflow.report.curves, nasflow.report.summary\n"
        "import nasflow.report.export.folder\n"
        "print([m for m in ('torch', 'plotly', 'rich', 'prefect') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
