"""A study as one HTML file that needs nothing else: no server, no network.

The page forbids itself every script but its own two and all of the network (a Content-Security-Policy), so that words
from a study could do nothing even where they were not escaped. (`unsafe-eval` is for what draws parallel coordinates by
WebGL; it lets no word in either.)
"""

import base64
import hashlib
import json
from collections import Counter
from html import escape
from importlib.resources import files

from nasflow.report.html.data import Figure, StudyFacts
from nasflow.report.html.merging import speed_up
from nasflow.report.html.parts import Section, config_yaml, fact_list, paragraph
from nasflow.report.html.sections import sections
from nasflow.report.html.timeline import seconds_text
from nasflow.report.text import plain_number, shown
from nasflow.trial import TrialStatus


def study_page(facts: StudyFacts) -> str:
    """The page."""
    figures: list[Figure] = []
    found = sections(facts)
    body = "".join(_section(section, figures) for section in found)
    scripts = [_plotly_js(), _own("page.js")]
    title = escape(facts.config.name)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · nasflow</title>\n<style>\n{_own('page.css')}</style>\n</head>\n<body>\n"
        f"<header>{_header(facts)}{_links(found)}</header>\n<main>\n{body}{_config(facts)}</main>\n"
        f"<footer>Made by nasflow on {facts.made_at:%Y-%m-%d %H:%M} UTC.</footer>\n"
        + "".join(_data(number, each) for number, each in enumerate(figures))
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _header(facts: StudyFacts) -> str:
    config = facts.config
    what = f"{config.strategy.kind} search · {config.space.target} · begun {facts.created_at:%Y-%m-%d %H:%M} UTC"
    missing = "".join(paragraph(sentence, "missing") for sentence in facts.missing)
    return f"<h1>{escape(config.name)}</h1>{paragraph(what)}{missing}{fact_list(_facts(facts))}"


def _facts(facts: StudyFacts) -> list[tuple[str, str, str]]:
    counts = Counter(trial.status for trial in facts.trials)
    told = [f"{counts[status]:,} {status.replace('_', ' ')}" for status in TrialStatus if counts[status]]
    trained = [trial for trial in facts.trials if trial.replayed_from is None]
    busy = sum(((run.ended or facts.made_at) - run.began).total_seconds() for run in facts.runs)
    wall = sum(each.seconds for each in facts.rounds)
    retries = sum(run.retry for run in facts.runs)
    found = [
        ("trials", f"{len(facts.trials):,}", ", ".join(told)),
        ("rounds", f"{len(facts.rounds):,}", f"of {facts.config.budget.rounds:,}"),
        ("epochs trained", f"{sum(trial.epochs for trial in trained):,}", ""),
        ("wall time", seconds_text(wall), "all rounds, while a controller was alive"),
        ("slots' time", seconds_text(busy), f"{len(facts.runs):,} jobs, {retries:,} of them retries"),
    ]
    if facts.best:
        first = facts.config.objectives[0]
        best = facts.best[0]
        value = shown(plain_number(best.metrics.get(first.metric)))
        found.insert(0, (f"best {first.metric}", value, f"trial {best.number} of round {best.round}"))
    if faster := speed_up(facts.plans):
        found.append(("merging", f"{faster:.2f} times", "expected, beside one by one"))
    return found


def _links(found: list[Section]) -> str:
    links = [(section.anchor, section.title) for section in found] + [("config", "Config")]
    return "<nav>" + "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in links) + "</nav>"


def _section(section: Section, figures: list[Figure]) -> str:
    parts = []
    for part in section.parts:
        if isinstance(part, str):
            parts.append(part)
        else:
            height = part["layout"]["height"]
            parts.append(f'<div class="plot" data-figure="figure{len(figures)}" style="height:{height}px"></div>')
            figures.append(part)
    return f'<section id="{section.anchor}"><h2>{section.title}</h2>{"".join(parts)}</section>\n'


def _config(facts: StudyFacts) -> str:
    text = f"<details><summary>YAML</summary><pre>{escape(config_yaml(facts.config))}</pre></details>"
    return f'<section id="config"><h2>Config</h2>{text}</section>\n'


def _data(number: int, figure: Figure) -> str:
    """A figure's JSON, in which no HTML parser finds a tag."""
    text = json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="figure{number}">{text}</script>\n'


def _policy(scripts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'unsafe-eval' {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _own(name: str) -> str:
    return files("nasflow.report.html").joinpath(name).read_text()


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - slow

    return str(get_plotlyjs())
