"""Finds the dead searches of a store and resumes them."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.study.database.store_url import StoreUrl, parse_url
from nasflow.study.study import Study, study_names

from ..budget import is_finished
from ..server.client import prefect_client, set_up_prefect
from ..server.in_use import URL, server_in_use
from .judge import Facts, Run, Standing, judge

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from .flow_runs import SearchRuns

Say = Callable[[str], None]

BURIED = "its process is gone; nasflow resumes the search"


@dataclass(frozen=True)
class Found:
    """A search, its state, and the reason for that state."""

    config: SearchConfig
    standing: Standing
    why: str
    run: Run | None


def recover_all(store: StoreUrl, dry_run: bool, grace: timedelta, say: Say, wait: bool = True) -> int:
    """Resume all dead searches of a store in parallel. Returns the exit code.

    Args:
        store: SQLAlchemy URL.
        dry_run: only say what would be done.
        grace: how long a flow run may take from its start until it holds its study.
        say: called with a line about each search.
        wait: for the end of those that this machine resumes; otherwise they go on after this process.

    Returns:
        0 if every dead search was resumed and, with `wait`, ended well; 1 otherwise.

    Raises:
        UserError: the store or Prefect can't be reached.
    """
    set_up_prefect(verbose=False)
    dead = []
    for found in look(store, grace, say):
        if found.standing is Standing.DEAD:
            dead.append(found)
        else:
            say(f"{found.config.name}: {found.standing}: {found.why}")
    if dry_run:
        for found in dead:
            say(f"{found.config.name}: {found.why}; would be resumed")
        return 0
    here = []
    ended_well = True
    for found in dead:
        if found.run is not None and found.run.deployed and found.run.id is not None:
            with prefect_client() as client:
                runs = search_runs(client, found.config)
                runs.bury(BURIED)
                runs.hand_over(found.run.id)
            say(f"{found.config.name}: {found.why}; handed over to a worker of its deployment")
            continue
        try:
            here.append((found, _resume(found.config, apart=not wait)))
        except OSError as error:
            say(f"{found.config.name}: {found.why}; could not be resumed: {error}")
            ended_well = False
    for found, process in here:
        log = _log(found.config)
        if not wait:
            say(f"{found.config.name}: {found.why}; resumed, its log is {log}")
            continue
        code = process.wait()
        say(f"{found.config.name}: {found.why}; resumed, {_outcome(code, log)}")
        ended_well &= code == 0
    return 0 if ended_well else 1


def look(store: StoreUrl, grace: timedelta, say: Say) -> list[Found]:
    """Return the state of each search of a store; `say` is called with a line about each that can't be read.

    Prefect is asked only about searches that nobody seems to run.
    """
    known = []
    with ExitStack() as stack:
        client = None
        for name in study_names(store):
            try:
                with closing(Study.load(store, name)) as study:
                    config, facts = study.config, _record(study)
                if facts.in_doubt:
                    client = client or stack.enter_context(prefect_client())
                    facts = _with_run(client, config, facts)
            except (StudyError, OSError) as error:  # it can't be read, or another process has removed it
                say(f"{name}: {Standing.LEFT}: {error}")
            else:
                known.append((config, facts))
    now = datetime.now(UTC)
    return [Found(config, *judge(facts, now, grace), facts.run) for config, facts in known]


def _record(study: Study) -> Facts:
    if is_finished(study):
        return Facts(finished=True)
    folder = study.config.study_dir
    there = folder.is_dir() or not study.trials(limit=1)
    return Facts(
        finished=False,
        folder=None if there else folder,
        holder=study.controller(),
        deserter=study.deserted_by(),
    )


def _with_run(client: "SyncPrefectClient", config: SearchConfig, facts: Facts) -> Facts:
    since = facts.deserter.since if facts.deserter else None
    return dataclasses.replace(facts, run=search_runs(client, config).newest(since))


def _resume(config: SearchConfig, apart: bool) -> subprocess.Popen[bytes]:
    """Start a process that resumes one search and writes its output into the study's folder.

    What ends this process or its group, such as a terminal or a worker, does not end one that is started `apart`.
    """
    log = _log(config)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    environment |= _prefect_settings()
    if apart and (server := server_in_use()) is not None and not server.kept:
        environment.pop(URL, None)  # that server ends with this process
    # not an argument, because it may hold a password
    environment["NASFLOW_STORE"] = parse_url(config.store).render_as_string(hide_password=False)
    command = [sys.executable, "-P", "-m", "nasflow.flows.cli", "recover", config.name]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=log.parent,  # a worker of Prefect removes the folder in which it has started a run
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=apart,
        )


def _prefect_settings() -> dict[str, str]:
    """Return Prefect's settings as environment variables, also those of files in the folder of this process."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    return get_current_settings().to_environment_variables(exclude_unset=True)


def _log(config: SearchConfig) -> Path:
    return config.study_dir / "recover.log"


def _outcome(code: int, log: Path) -> str:
    if code == 0:
        return "ended well"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = f": {lines[-1][:300]}" if lines else ""
    return f"ended with code {code} (see {log}){said}"


def search_runs(client: "SyncPrefectClient", config: SearchConfig) -> "SearchRuns":
    """Return the flow runs of a search."""
    from .flow_runs import SearchRuns  # noqa: PLC0415 - slow

    return SearchRuns(client, config)
