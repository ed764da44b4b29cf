"""The progress that a search shows: of this run, and of the runs before it."""

import io
import logging
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from nasflow.config.search import SearchConfig, parse_config
from nasflow.flows.commands.console import shown_warnings
from nasflow.flows.commands.run.progress import SearchProgress
from nasflow.job.events import Epoch, Final
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState, EpochRecord, FinalRecord
from nasflow.study.study import Study
from tests.flows.forked_commands import run_forked
from tests.flows.searches import HERE, PrefectServer

METRIC = "val[accuracy]"


def config(folder: Path) -> SearchConfig:
    return parse_config(
        {
            "name": "shown",
            "space": {"target": "spaces.py:mixed"},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
            "objectives": [{"metric": METRIC}],
            "budget": {"rounds": 2, "trials_per_round": 9},
            "store": f"sqlite:///{folder}/s.db",
            "work_dir": folder,
            "base_dir": HERE,
        }
    )


def test_a_resumed_search_shows_what_earlier_runs_have_recorded(tmp_path: Path) -> None:
    """One trial of three was trained before, one was begun; the fourth is a replay that waits."""
    with closing(Study.open(config(tmp_path))) as study:
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"width": width}) for width in (8, 16, 32, 32)])
        for trial in (0, 1):
            attempt = study.new_attempt(trial)
            study.start_attempt(attempt.id, f"job-{trial}")
            study.record_epochs([EpochRecord(trial, epoch, {METRIC: 0.9}, 1.0, attempt.id) for epoch in (1, 2)])
            if trial == 0:
                study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, {METRIC: 0.9}, 2)])
        screen = io.StringIO()
        terminal = Console(file=screen, force_terminal=True, width=150)
        with SearchProgress(study.config, terminal) as progress:
            progress.follow(study)
            for epoch in (1, 2, 3):  # those on record are reported again
                progress.on_event(attempt, Epoch(trial=1, epoch=epoch, metrics={METRIC: 0.5}))
            progress.on_event(attempt, Final(trial=1, epochs=3, metrics={METRIC: 0.5}))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).split("\n")
    shown = next(line for line in reversed(lines) if "round 1 of 2" in line)
    assert re.search(r"2/3 +trials · 5 epochs · best val\[accuracy\] 0\.9000", shown), shown


def test_a_warning_is_written_above_the_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("nasflow")
    monkeypatch.setattr(log, "handlers", [])
    stderr, screen = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with shown_warnings():
        with SearchProgress(config(tmp_path), Console(file=screen, force_terminal=True, width=150)):
            log.getChild("study").warning("the store [%s] is slow", "s.db")
        log.info("not told")
        log.error("a job could not be ended")
    assert log.handlers == []
    assert screen.getvalue().count("warning: the store [s.db] is slow\n") == 1
    assert stderr.getvalue() == "error: a job could not be ended\n"


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_warning_that_can_not_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    with shown_warnings():
        logging.getLogger("nasflow.study").warning("the disk is full")


WARNS = """
import logging
from nasflow.flows.commands.options import own_server

with own_server(verbose=False):
    import prefect
    logging.getLogger("nasflow.flows.pool.service").warning("jobs wait")
"""


def test_commands_show_warnings_though_prefects_own_log_is_not_shown(
    tmp_path: Path, prefect_server: PrefectServer
) -> None:
    ended = run_forked(["python", "-c", WARNS], tmp_path, prefect_server.env)
    assert (ended.returncode, ended.stderr) == (0, "warning: jobs wait\n")
