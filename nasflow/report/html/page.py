"""A study as one HTML file that needs nothing else: no server, no network.

A Content-Security-Policy forbids all scripts except the page's own two, and all network access. So a text of a study
could do nothing even if it were not escaped. (Plotly needs `unsafe-eval` to draw parallel coordinates by WebGL; it does
not let texts of the study run.)
"""

import base64
import hashlib
from collections import Counter
from importlib.resources import files

from nasflow.report.html.data import StudyFacts
from nasflow.report.html.merging import speed_up
from nasflow.report.html.parts import config_yaml
from nasflow.report.html.rendering import page
from nasflow.report.html.sections import sections
from nasflow.report.html.timeline import seconds_text
from nasflow.report.summary import epochs_trained
from nasflow.report.text import plain_number, shown
from nasflow.trial import TrialStatus


def study_page(facts: StudyFacts) -> str:
    """Return the page as HTML."""
    scripts = [_plotly_js(), _own("page.js")]
    return page(
        "page.html",
        facts=facts,
        totals=_totals(facts),
        sections=sections(facts),
        config_yaml=config_yaml(facts.config),
        policy=_policy(scripts),
        style=_own("page.css"),
        scripts=scripts,
    )


def _totals(facts: StudyFacts) -> list[tuple[str, str, str]]:
    """The numbers in the header: a name, a value, and an explanation in small letters."""
    counts = Counter(trial.status for trial in facts.trials)
    statuses = [f"{counts[status]:,} {status.replace('_', ' ')}" for status in TrialStatus if counts[status]]
    busy = sum(((run.ended or facts.made_at) - run.began).total_seconds() for run in facts.runs)
    wall = sum(each.seconds for each in facts.rounds)
    retries = sum(run.retry for run in facts.runs)
    found = [
        ("trials", f"{len(facts.trials):,}", ", ".join(statuses)),
        ("rounds", f"{len(facts.rounds):,}", f"of {facts.config.budget.rounds:,}"),
        ("epochs trained", f"{epochs_trained(facts.trials):,}", ""),
        ("wall time", seconds_text(wall), "of all rounds, while a controller ran"),
        ("slot time", seconds_text(busy), f"{len(facts.runs):,} jobs, {retries:,} of them retries"),
    ]
    if facts.best:
        first = facts.config.objectives[0]
        best = facts.best[0]
        value = shown(plain_number(best.metrics.get(first.metric)))
        found.insert(0, (f"best {first.metric}", value, f"trial {best.number} of round {best.round}"))
    if faster := speed_up(facts.plans):
        found.append(("merging", f"{faster:.2f} times", "as fast as one by one (expected)"))
    return found


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
