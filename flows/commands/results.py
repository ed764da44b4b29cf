"""The commands that show or export the records of studies."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from nasflow.errors import UserError

from .console import console
from .options import DEFAULT_STORE, MOST, AsJson, StoreUrl, StudyName, Top, load_study, print_out, store_option


def studies(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the studies of a store."""
    from nasflow.study.study import list_studies  # noqa: PLC0415

    from .views import studies_json, studies_table  # noqa: PLC0415

    infos = list_studies(store)
    print_out(studies_json(infos) if as_json else studies_table(infos))


def show(
    study: StudyName,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
    start: Annotated[
        int, typer.Option("--from", min=0, max=MOST, metavar="TRIAL", help="The first trial; with --json.")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, help="The most trials; with --json.")] = 1000,
) -> None:
    """Show a study's rounds, trials, and what failed and why.

    JSON has all rounds, a page of trials and their attempts, and under `next` the first trial of the next page.
    """
    from .views import study_json, study_view  # noqa: PLC0415

    opened = load_study(store, study)
    if not as_json:
        print_out(study_view(opened, shlex.join(["nasflow", "retry", study, *store_option(store)])))
        return
    page = study_json(opened, start, limit)
    print_out(page)
    if page["next"] is not None:
        again = ["--json", "--from", str(page["next"]), "--limit", str(limit), *store_option(store)]
        shown = f"trials {start} to {page['next'] - 1} of {sum(opened.counts().values())}"
        console(stderr=True).print(f"{shown}; the next ones: {shlex.join(['nasflow', 'show', study, *again])}")


def leaderboard(study: StudyName, store: StoreUrl = DEFAULT_STORE, top: Top = 10, as_json: AsJson = False) -> None:
    """Show a study's best trials."""
    from nasflow.report.leaderboard import leaderboard_json, leaderboard_table  # noqa: PLC0415

    opened = load_study(store, study)
    trials = opened.leaderboard(top)
    objectives = opened.config.objectives
    print_out(leaderboard_json(trials, objectives, top) if as_json else leaderboard_table(trials, objectives, top))


def report(
    study: StudyName,
    html: Annotated[
        Path, typer.Option("--html", metavar="FILE", help="The file; an earlier report there is replaced.")
    ],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Write a study's report: one HTML page with plots that needs no network. Works while the search runs, too."""
    from .report.command import write_report  # noqa: PLC0415

    write_report(load_study(store, study), html)


def export(
    study: StudyName,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Export the best trained models here, one sub-folder a model."),
    ] = None,
    top: Top = 1,
    optuna: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Export all trials as an Optuna study, e.g. to sqlite:///optuna.db."),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Export the best trained models (--out), the trials for Optuna's dashboard (--optuna), or both.

    Each model is exported as weights, architecture, and a script that rebuilds and scores it.
    """
    from .export import export_models, export_to_optuna  # noqa: PLC0415

    if out is None and optuna is None:
        raise UserError("say what to export: trained models with --out DIR, trials with --optuna URL, or both")
    opened = load_study(store, study)
    if out is not None:
        export_models(opened, out, top)
    if optuna is not None:
        export_to_optuna(opened, optuna)
