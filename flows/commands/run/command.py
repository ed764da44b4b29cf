"""`nasflow run` and `nasflow retry`: run a flow, with progress on the terminal and the result at the end."""

import atexit
import functools
import gc
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from nasflow.config.job_secrets import job_secrets
from nasflow.config.search import CommandConfig, SearchConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.system.gc_control import uncollected
from nasflow.training_service.local.service import LocalService

from ...budget import unfinished_text, why_not_tested
from ...server.errors import api_url
from ...server.own_server import notice_failed_start, use_own_server
from ...session.signals import leave_on_sigterm
from ..console import console, score_command

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from ...session.session import SearchSession

_INTERRUPTED = 130


def run_search(config: SearchConfig, export_best: Path | None, take_over: bool) -> int:
    """Run the search flow. Returns the exit code."""
    atexit.register(gc.freeze)
    began = time.monotonic()
    terminal = console()
    if export_best is not None:
        from nasflow.report.export.folder import refuse_export, refuse_folder  # noqa: PLC0415 - slow

        refuse_export(config)
        refuse_folder(export_best.absolute())
    with _open_session(config, terminal, take_over) as session:
        checked = time.monotonic()
        with _without_collector():
            from nasflow.report.leaderboard import leaderboard_table  # noqa: PLC0415
            from nasflow.report.text import error_headline  # noqa: PLC0415

            from ...search_flow import search  # noqa: PLC0415 - Prefect is imported once the config is known to work

        state = _call(search, config)
        if _is_interrupted(state):
            return _say_interrupted(terminal, config)
        result = state.result()
        study = session.study
        trained, unfinished = study.seconds_spent(), unfinished_text(study)
        best_trials = study.leaderboard(10)
        board = leaderboard_table(best_trials, config.objectives, 10)
        untested = why_not_tested(study, best_trials[0])
    terminal.print(board)
    say = functools.partial(terminal.print, soft_wrap=True)
    if unfinished:
        say(f"study '{config.name}'{unfinished}")
    best = result.best
    if untested:
        say(f"trial {best.trial.number} could not be scored on test data: {error_headline(untested)}")
    kept = "files" if isinstance(config.evaluator, CommandConfig) else "checkpoint"
    say(f"trained best model: trial {best.trial.number}, {kept} in {best.checkpoint}")
    if export_best is not None:
        folder = best.export(export_best.absolute())
        say(f"exported to {folder}; rebuild and score it with: {score_command(folder, config.base_dir)}")
    waited = (session.flow_began or checked) - checked
    say(
        f"time: {checked - began:.1f} s checks, {waited:.1f} s start of Prefect, "
        f"{trained:.1f} s rounds (all runs of this study), {time.monotonic() - began:.1f} s this run in all"
    )
    say(_how_to_see())
    return 0


def run_retry(config: SearchConfig, take_over: bool) -> int:
    """Run the retry flow. Returns the exit code, which is 1 if trials were retried and all failed again."""
    terminal = console()
    with _open_session(config, terminal, take_over):
        with _without_collector():
            from ...retry_flow import retry_failed  # noqa: PLC0415

        state = _call(retry_failed, config)
    if _is_interrupted(state):
        return _say_interrupted(terminal, config)
    terminal.print(f"study '{config.name}': {state.message}", soft_wrap=True)
    return 1 if state.is_failed() else 0


@contextmanager
def _open_session(config: SearchConfig, terminal: Console, take_over: bool) -> Iterator["SearchSession"]:
    """Yield the search's session. Local workers start while modules are imported and the config is checked."""
    with ExitStack() as stack:
        stack.enter_context(leave_on_sigterm())
        service = None
        if isinstance(config.training_service, LocalServiceConfig):
            service = LocalService(config.training_service, config.study_dir, secrets=job_secrets(config))
            stack.enter_context(service.early_start())
        with _without_collector():
            from ...session.session import search_session  # noqa: PLC0415 - slow
            from .progress import SearchProgress  # noqa: PLC0415 - slow

            notice_failed_start()
            progress = stack.enter_context(SearchProgress(config, terminal))
            session = stack.enter_context(search_session(config, [progress.on_event], service, take_over))
            progress.follow(session.study)
        yield session


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch Python's garbage collector off in this block, and exclude all present objects from it afterwards.

    Imports create objects that nearly all stay, so collecting during imports costs a second and frees nothing.
    """
    with uncollected():
        try:
            yield
        finally:
            gc.freeze()


def _call(flow: Callable[..., Any], config: SearchConfig) -> "State[Any]":
    """Run a flow. Returns the state of its run, which is CANCELLED if it was cancelled before it began."""
    from ...session.control import end_cancelling  # noqa: PLC0415 - slow
    from ...ui.heartbeats import without_engine_heartbeats  # noqa: PLC0415 - slow

    use_own_server()
    with without_engine_heartbeats():
        return end_cancelling(flow(config, return_state=True))


def _is_interrupted(state: "State[Any]") -> bool:
    return state.is_cancelled() or not state.is_final()


def _say_interrupted(terminal: Console, config: SearchConfig) -> int:
    said = f": study '{config.name}' keeps its finished epochs; the same command continues from here"
    terminal.print(Text.assemble(("interrupted", "yellow"), said), soft_wrap=True)
    return _INTERRUPTED


def _how_to_see() -> str:
    from prefect.settings import PREFECT_UI_URL  # noqa: PLC0415

    api = api_url()
    if api is not None:
        url = PREFECT_UI_URL.value() or api.removesuffix("/api")
        return f"see it in the Prefect UI: {url}"
    program = shutil.which("prefect") or Path(sys.executable).with_name("prefect")
    return f"see it in the Prefect UI: {program} server start, then open http://127.0.0.1:4200"
