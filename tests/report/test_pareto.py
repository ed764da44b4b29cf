"""The Pareto front as a picture and a table, and where a search lies."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from nasflow.config.search import Objective, SearchConfig
from nasflow.report.links import links_markdown
from nasflow.report.pareto import pareto_front, pareto_markdown
from nasflow.space.architecture import Architecture
from nasflow.trial import Trial, TrialStatus

BOTH = [Objective(metric="acc"), Objective(metric="parameters", direction="minimize")]
CIRCLE = "{http://www.w3.org/2000/svg}circle"


def trial(number: int, acc: float, parameters: float, replayed_from: int | None = None) -> Trial:
    return Trial(
        number=number,
        round=0,
        seed=1,
        architecture=Architecture({"width": number}),
        status=TrialStatus.TRAINED,
        metrics={"acc": acc, "parameters": parameters, "loss": 1 - acc},
        replayed_from=replayed_from,
    )


TRIALS = [trial(0, 0.9, 900), trial(1, 0.8, 300), trial(2, 0.7, 800), trial(3, 0.5, 100), trial(4, 0.99, 10, 9)]


def pictures(text: str) -> list[ET.Element]:
    found = re.findall(r"\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", text)
    return [ET.fromstring(base64.b64decode(picture)) for picture in found]


def test_the_front_is_who_no_one_beats_in_everything():
    assert [one.number for one in pareto_front(TRIALS, BOTH)] == [0, 1, 3]


def test_the_picture_shows_all_and_names_the_front():
    (picture,) = pictures(pareto_markdown(TRIALS, BOTH))
    circles = [circle.attrib for circle in picture.iter(CIRCLE)]
    front = [circle for circle in circles if circle["r"] == "4"]
    assert len(circles) == 4 and len(front) == 3
    xs, ys = ([float(circle[key]) for circle in front] for key in ("cx", "cy"))
    assert xs == sorted(xs) and ys == sorted(ys, reverse=True), "more parameters to the right, more accuracy up"
    words = [element.text for element in picture.iter() if element.text]
    assert {"0", "1", "3", "acc", "100", "parameters 900"} <= set(words)


def test_the_table_has_the_front_and_each_further_objective_a_picture():
    three = [*BOTH, Objective(metric="loss", direction="minimize")]
    text = pareto_markdown(TRIALS, three)
    assert len(pictures(text)) == 2
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["trial", "---", "0", "1", "3"]


def test_a_large_study_has_a_small_picture():
    trials = [trial(number, number / 5000, number) for number in range(5000)]
    trials += [trial(5000 + number, 0.0, 6000.0 + number) for number in range(5000)]
    text = pareto_markdown(trials[5000:], BOTH)
    assert len(text) < 200_000
    assert "No trial has a score yet" in pareto_markdown([], BOTH)


def test_links_work_from_anywhere_and_show_no_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"target": "nasflow.evaluator.data:Digits"}
    evaluator = {"kind": "classification", "data": data}
    config = SearchConfig.model_validate({"name": "here", "space": {"target": "a:b"}, "evaluator": evaluator})
    text = links_markdown(config, (3, Path("there") / "trials" / "00003"))
    assert f"`{tmp_path / 'nasflow-runs' / 'here'}`" in text
    assert "trial 3: `there/trials/00003`" in text
    assert f"nasflow leaderboard here --store sqlite:///{tmp_path / 'nasflow.db'} --top 20" in text
    shared = config.model_copy(update={"store": "postgresql+psycopg://me:secret@db/nas"})
    text = links_markdown(shared, None)
    assert "secret" not in text and "'postgresql+psycopg://me:***@db/nas'" in text
    elsewhere = SearchConfig.model_validate({**config.model_dump(), "store": {"env": "STUDIES"}})
    assert 'nasflow show here --store "$STUDIES"' in links_markdown(elsewhere, None)
