"""`nasflow report-metric`: what a trial's program reports, if it does not write the line itself. Imports little."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from nasflow.errors import UserError
from nasflow.job.reports import EPOCH, METRICS, append_report, parse_report


def report_metric(
    metrics: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="The metrics of an epoch.")],
) -> None:
    """Report the metrics of an epoch, in a trial of `evaluator: {kind: command}`. `epoch=N` says which epoch it is."""
    if METRICS not in os.environ:
        raise UserError(f"report-metric: {METRICS} is not set, so this is no trial of 'evaluator: {{kind: command}}'")
    values = dict(map(_pair, metrics))
    try:
        parse_report(json.dumps(values))
    except ValueError as error:
        raise UserError(f"report-metric: {error}") from None
    append_report(Path(os.environ[METRICS]), values)


def _pair(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise UserError(f"report-metric: '{text[:80]}' should read name=value")
    try:
        return name, int(value) if name == EPOCH else float(value)
    except ValueError:
        raise UserError(f"report-metric: '{name}' is '{value[:80]}', which is no number") from None
