"""The sections of the HTML report, each of which says so if what it should show is not there."""

from nasflow.report.choices import domains_of
from nasflow.report.html.choices import MOST_AXES, MOST_LINES, importance_figure, parallel_figure
from nasflow.report.html.data import Figure, StudyFacts
from nasflow.report.html.history import curves_figure, history_figures, pareto_figures
from nasflow.report.html.merging import MOST_UNITS, alone_rows, merging_figure, merging_rows, merging_summary
from nasflow.report.html.parts import Section, choice_list, heading, paragraph, table
from nasflow.report.html.plot import MOST_POINTS, thinned
from nasflow.report.html.timeline import MOST_RUNS, timeline_figure
from nasflow.report.importance import FEWEST, importances
from nasflow.report.leaderboard import leaderboard_rows
from nasflow.report.model.drawing import model_svg
from nasflow.report.summary import failure_rows
from nasflow.report.text import value_text
from nasflow.space.domain import Domain

CURVES = 10
"""How many curves have a color of their own."""
_ROWS = 20
_RATED = 2_000  # trials at most, of which the importance of choices is told
_NO_SCORE = "No trial has a score yet."

Parts = list[str | Figure]


def sections(facts: StudyFacts) -> list[Section]:
    """All of them, in their order."""
    found = [
        Section("Leaderboard", _leaderboard(facts)),
        Section("History", _history(facts)),
        Section("Learning curves", _curves(facts)),
        Section("Pareto front", _pareto(facts)) if len(facts.config.objectives) > 1 else None,
        Section("Choices", _choices(facts)),
        Section("Best architectures", _models(facts)),
        Section("Merging", _merging(facts)),
        Section("Time line", _timeline(facts)),
        Section("Failures", failures) if (failures := _failures(facts)) else None,
        Section("Rounds", _rounds(facts)),
    ]
    return [section for section in found if section is not None]


def _leaderboard(facts: StudyFacts) -> Parts:
    objectives = facts.config.objectives
    goal = ", ".join(f"{objective.direction} {objective.metric}" for objective in objectives)
    rows = leaderboard_rows(facts.best, objectives, _ROWS)
    return [paragraph(goal, "dim"), table(rows) if rows else paragraph(_NO_SCORE, "missing")]


def _history(facts: StudyFacts) -> Parts:
    figures = history_figures(facts)
    if not figures:
        return [paragraph(_NO_SCORE, "missing")]
    note = _sampled(len(facts.scored), MOST_POINTS, "trials")
    return [*note, *figures]


def _curves(facts: StudyFacts) -> Parts:
    figure = curves_figure(facts, CURVES)
    if figure is None:
        return [paragraph("No epoch is on record of which an objective is a metric.", "missing")]
    trained = sum(trial.epochs > 0 and trial.replayed_from is None for trial in facts.trials)
    return [*_sampled(trained, len(facts.curves), "trials with epochs"), figure]


def _pareto(facts: StudyFacts) -> Parts:
    figures = pareto_figures(facts)
    if not figures:
        return [paragraph(_NO_SCORE, "missing")]
    return [paragraph("On the front are trials that no other beats in every objective.", "dim"), *figures]


def _choices(facts: StudyFacts) -> Parts:
    trials, objectives = facts.scored, facts.config.objectives
    architectures = [trial.architecture for trial in trials]
    domains = domains_of(architectures, facts.domains)
    varied = {label: domain for label, domain in domains.items() if domain.size() != 1}
    if len(trials) < 2 or not varied:
        return [paragraph("Choices can be compared once two trials have a score and differ.", "missing")]
    shares = None
    if len(trials) >= FEWEST:
        shares = importances(thinned(trials, _RATED), objectives, domains)
    return [*_importance(shares, len(trials)), *_parallel(facts, varied, shares)]


def _importance(shares: dict[str, dict[str, float]] | None, count: int) -> Parts:
    if shares is None:
        few = f"{count} trials have a score; the importance of choices can be told from {FEWEST} on."
        return [heading("Importance"), paragraph(few, "missing")]
    told = (
        "The share that each choice has in being among the best tenth of all trials, "
        "estimated by PED-ANOVA (Optuna's default)."
    )
    rough = [paragraph("With so few trials this is rough.", "dim")] if count < 5 * 10 else []
    return [heading("Importance"), paragraph(told, "dim"), *rough, importance_figure(shares)]


def _parallel(facts: StudyFacts, varied: dict[str, Domain], shares: dict[str, dict[str, float]] | None) -> Parts:
    trials = facts.scored
    labels = list(varied)
    notes: Parts = _sampled(len(trials), MOST_LINES, "trials, the best hundred among them,")
    if len(labels) > MOST_AXES:
        if shares is not None:
            first = next(iter(shares.values()))
            labels.sort(key=lambda label: -first.get(label, 0.0))
        which = "most important" if shares is not None else "first"
        notes.append(paragraph(f"The {MOST_AXES} {which} of {len(labels)} choices are shown.", "dim"))
        labels = [label for label in varied if label in labels[:MOST_AXES]]
    how = "A line is a trial. Drag along an axis to keep only the lines that pass there."
    figure = parallel_figure(trials, facts.config.objectives, varied, labels)
    return [heading("Parallel coordinates"), paragraph(how, "dim"), *notes, figure]


def _models(facts: StudyFacts) -> Parts:
    drawn = [trial for trial in facts.best if trial.number in facts.models]
    if not drawn:
        return [paragraph("There is nothing to draw." if facts.best else _NO_SCORE, "missing")]
    pictures = []
    for trial in drawn:
        choices = choice_list({label: value_text(value) for label, value in trial.architecture.items()})
        picture = model_svg(facts.models[trial.number])
        pictures.append(f"<figure><h3>trial {trial.number}</h3>{choices}{picture}</figure>")
    how = "Modules in the order in which the model registers them, with how many parameters each holds."
    return [paragraph(how, "dim"), f'<div class="models">{"".join(pictures)}</div>']


def _merging(facts: StudyFacts) -> Parts:
    if not facts.plans:
        why = "none has run, or their files are not here" if facts.config.merge.enabled else "merge.enabled is false"
        return [paragraph(f"No job has told how it merged its trials: {why}.", "missing")]
    rows, alone, figure = merging_rows(facts.plans), alone_rows(facts.plans), merging_figure(facts.plans)
    units = sum(len(plan["units"]) for plans in facts.plans.values() for plan in plans)
    parts: Parts = [paragraph(merging_summary(facts.plans)), *_sampled(units, MOST_UNITS, "units")]
    parts += [figure] if figure else []
    parts += [f"<details><summary>Units</summary>{table(rows)}</details>"] if rows else []
    parts += [heading("In no unit with others"), table(alone)] if alone else []
    return parts


def _timeline(facts: StudyFacts) -> Parts:
    figure = timeline_figure(facts.runs, facts.made_at)
    if figure is None:
        return [paragraph("No job has run yet.", "missing")]
    newest = f"The newest {MOST_RUNS:,} of {len(facts.runs):,} runs." if len(facts.runs) > MOST_RUNS else ""
    how = f"A row is a slot, a bar a run of a job; retries are hatched. {newest}"
    return [paragraph(how, "dim"), figure]


def _failures(facts: StudyFacts) -> Parts:
    rows = failure_rows(facts.trials)
    more = [paragraph(f"… and {len(rows) - _ROWS} more kinds of errors", "dim")] if len(rows) > _ROWS else []
    return [table(rows[:_ROWS]), *more] if rows else []


def _rounds(facts: StudyFacts) -> Parts:
    if not facts.rounds:
        return [paragraph("No round has begun yet.", "missing")]
    rows = [
        {"round": each.number, "state": each.state, "seconds": round(each.seconds, 1), "what happened": each.message}
        for each in facts.rounds
    ]
    last = rows[-_ROWS // 2 :]
    earlier = f"<details><summary>All {len(rows)}</summary>{table(rows)}</details>" if len(rows) > len(last) else ""
    return [table(last), earlier]


def _sampled(count: int, most: int, what: str) -> Parts:
    return [paragraph(f"Of {count:,} {what} {most:,} are drawn.", "dim")] if count > most else []
