"""The sections of the HTML report. A section with nothing to show says why."""

from markupsafe import Markup

from nasflow.report.choices import domains_of
from nasflow.report.html.choices import MOST_AXES, MOST_LINES, importance_figure, parallel_figure
from nasflow.report.html.data import Figure, StudyFacts
from nasflow.report.html.history import curves_figure, history_figures, pareto_figures
from nasflow.report.html.merging import MOST_UNITS, alone_rows, merging_figure, merging_rows, merging_summary
from nasflow.report.html.parts import Section, folded, heading, models, paragraph, table
from nasflow.report.html.plot import MOST_POINTS, thinned
from nasflow.report.html.timeline import MOST_RUNS, timeline_figure
from nasflow.report.importance import FEWEST, importances
from nasflow.report.leaderboard import leaderboard_rows
from nasflow.report.model.drawing import model_picture
from nasflow.report.summary import failure_rows
from nasflow.space.domain import Domain

CURVES = 10
"""Number of learning curves with their own color."""
_ROWS = 20
_RATED = 2_000  # most trials for the importance of choices
_NO_SCORE = "No trial has a score yet."

Parts = list[Markup | Figure]


def sections(facts: StudyFacts) -> list[Section]:
    """Return the sections in the order of the page."""
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
        return [paragraph("No recorded epoch has the metric of an objective.", "missing")]
    trained = sum(trial.epochs > 0 and trial.replayed_from is None for trial in facts.trials)
    return [*_sampled(trained, len(facts.curves), "trials with epochs"), figure]


def _pareto(facts: StudyFacts) -> Parts:
    figures = pareto_figures(facts)
    if not figures:
        return [paragraph(_NO_SCORE, "missing")]
    return [paragraph("The front has the trials that no other trial beats in every objective.", "dim"), *figures]


def _choices(facts: StudyFacts) -> Parts:
    trials, objectives = facts.scored, facts.config.objectives
    architectures = [trial.architecture for trial in trials]
    domains = domains_of(architectures, facts.domains)
    varied = {label: domain for label, domain in domains.items() if domain.size() != 1}
    if len(trials) < 2 or not varied:
        return [paragraph("Choices can be compared once two trials with different choices have a score.", "missing")]
    shares = None
    if len(trials) >= FEWEST:
        shares = importances(thinned(trials, _RATED), objectives, domains)
    return [*_importance(shares, len(trials)), *_parallel(facts, varied, shares)]


def _importance(shares: dict[str, dict[str, float]] | None, count: int) -> Parts:
    if shares is None:
        few = f"{count} trials have a score; the importance of choices needs at least {FEWEST}."
        return [heading("Importance"), paragraph(few, "missing")]
    meaning = (
        "How much each choice decides whether a trial is among the best tenth, "
        "as a share estimated by PED-ANOVA (Optuna's default)."
    )
    rough = [paragraph("This is a rough estimate from few trials.", "dim")] if count < 5 * 10 else []
    return [heading("Importance"), paragraph(meaning, "dim"), *rough, importance_figure(shares)]


def _parallel(facts: StudyFacts, varied: dict[str, Domain], shares: dict[str, dict[str, float]] | None) -> Parts:
    trials = facts.scored
    labels = list(varied)
    notes: Parts = _sampled(len(trials), MOST_LINES, "trials, including the best hundred,")
    if len(labels) > MOST_AXES:
        if shares is not None:
            first = next(iter(shares.values()))
            labels.sort(key=lambda label: -first.get(label, 0.0))
        which = "most important" if shares is not None else "first"
        notes.append(paragraph(f"The {MOST_AXES} {which} of {len(labels)} choices are shown.", "dim"))
        labels = [label for label in varied if label in labels[:MOST_AXES]]
    how = "Each line is a trial. Drag along an axis to keep only the lines that cross it there."
    figure = parallel_figure(trials, facts.config.objectives, varied, labels)
    return [heading("Parallel coordinates"), paragraph(how, "dim"), *notes, figure]


def _models(facts: StudyFacts) -> Parts:
    drawn = [trial for trial in facts.best if trial.number in facts.models]
    if not drawn:
        return [paragraph("There is nothing to draw." if facts.best else _NO_SCORE, "missing")]
    how = "Modules in the order of their registration, with their numbers of parameters."
    return [paragraph(how, "dim"), models([(trial, model_picture(facts.models[trial.number])) for trial in drawn])]


def _merging(facts: StudyFacts) -> Parts:
    if not facts.plans:
        why = "no job has run, or its files are elsewhere" if facts.config.merge.enabled else "merge.enabled is false"
        if facts.config.evaluator.parallel is not None:
            why = "evaluator.parallel trains its trials in jobs of their own"
        return [paragraph(f"No merge plan of a job is available: {why}.", "missing")]
    rows, alone, figure = merging_rows(facts.plans), alone_rows(facts.plans), merging_figure(facts.plans)
    units = sum(len(plan["units"]) for plans in facts.plans.values() for plan in plans)
    parts: Parts = [paragraph(merging_summary(facts.plans)), *_sampled(units, MOST_UNITS, "units")]
    parts += [figure] if figure else []
    parts += [folded("Units", table(rows))] if rows else []
    parts += [heading("Not merged"), table(alone)] if alone else []
    return parts


def _timeline(facts: StudyFacts) -> Parts:
    figure = timeline_figure(facts.runs, facts.made_at)
    if figure is None:
        return [paragraph("No job has run yet.", "missing")]
    newest = f"Shown are the newest {MOST_RUNS:,} of {len(facts.runs):,}." if len(facts.runs) > MOST_RUNS else ""
    how = f"Each row is a slot and each bar a run of a job. Retries are hatched. {newest}"
    return [paragraph(how, "dim"), figure]


def _failures(facts: StudyFacts) -> Parts:
    rows = failure_rows(facts.trials)
    more = [paragraph(f"… and {len(rows) - _ROWS} other errors", "dim")] if len(rows) > _ROWS else []
    return [table(rows[:_ROWS]), *more] if rows else []


def _rounds(facts: StudyFacts) -> Parts:
    if not facts.rounds:
        return [paragraph("No round has started yet.", "missing")]
    rows = [
        {"round": each.number, "state": each.state, "seconds": round(each.seconds, 1), "what happened": each.message}
        for each in facts.rounds
    ]
    last = rows[-_ROWS // 2 :]
    return [table(last), *([folded(f"All {len(rows)}", table(rows))] if len(rows) > len(last) else [])]


def _sampled(count: int, most: int, what: str) -> Parts:
    return [paragraph(f"Of {count:,} {what} {most:,} are drawn.", "dim")] if count > most else []
