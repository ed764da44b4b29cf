"""The checks of `nasflow doctor` on the Prefect server: API, versions, clock, work pool, workers, automation."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from ...server.client import prefect_client, set_up_prefect
from ...server.errors import api_url, no_server
from ...server.own_server import use_kept_server
from .findings import Finding, Level, examined

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import WorkPool

KNOWN_TYPES = ("process", "docker", "kubernetes")
_CLOCK = timedelta(seconds=10)
_PREFECT = {
    "PREFECT_CLIENT_MAX_RETRIES": "0",
    "PREFECT_API_REQUEST_TIMEOUT": "30",
}


def find_server() -> bool:
    """Let all checks use the server that searches would find, and return whether it is a kept one."""
    os.environ.update(_PREFECT)
    set_up_prefect(verbose=False)
    return use_kept_server()


def check_prefect(pool: str, is_kept: bool) -> list[Finding]:
    """Check whether Prefect's server can run searches of a work pool. Without a usable server, it stops there."""
    findings = examined("server", lambda: _check_server(is_kept))
    if any(finding.level is Level.BROKEN for finding in findings) or api_url() is None:
        return findings
    findings += examined("clock", _check_clock)
    findings += examined("pool", lambda: _check_pool(pool))
    findings += examined("automation", _check_automation)
    return findings


def _check_server(is_kept: bool) -> Iterator[Finding]:
    import prefect  # noqa: PLC0415 - slow
    from packaging.version import parse  # noqa: PLC0415 - slow
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    url = api_url()
    if url is None:
        if not get_current_settings().server.ephemeral.enabled:
            raise no_server()
        yield Finding(
            "server",
            Level.WARNING,
            "none is configured, so each search starts one for itself, without schedules and workers",
            "run 'nasflow server start'; for a team, 'prefect server start', and set PREFECT_API_URL to it",
        )
        return
    with prefect_client() as client:
        theirs, ours = client.api_version(), prefect.__version__
    if parse(theirs) < parse(ours):
        saw = f"{url} answers, but is older (Prefect {theirs}) than Prefect here ({ours})"
        yield Finding("server", Level.WARNING, saw, f"upgrade the server to {ours}")
    else:
        kept = "; 'nasflow server stop' ends it" if is_kept else ""
        yield Finding("server", Level.OK, f"{url} answers and accepts us: Prefect {theirs}, here {ours}{kept}")


def _check_clock() -> Iterator[Finding]:
    with prefect_client() as client:
        date = client.hello().headers.get("Date")
    if date is not None:
        yield clock_finding(parsedate_to_datetime(date), datetime.now(UTC))


def clock_finding(theirs: datetime, ours: datetime) -> Finding:
    """Return whether our clock agrees with the server's, which reports whole seconds."""
    ahead = ours - theirs
    if abs(ahead) < _CLOCK:
        return Finding("clock", Level.OK, "in step with the server's")
    way = "ahead of" if ahead > timedelta() else "behind"
    return Finding(
        "clock",
        Level.WARNING,
        f"{abs(ahead).total_seconds():.0f} s {way} the server's: schedules fire at other times than shown",
        "let both follow NTP",
    )


def _check_pool(name: str) -> Iterator[Finding]:
    from prefect.exceptions import ObjectNotFound  # noqa: PLC0415 - slow

    with prefect_client() as client:
        try:
            pool = client.read_work_pool(name)
        except ObjectNotFound:
            others = ", ".join(pool.name for pool in client.read_work_pools(limit=10)) or "none"
            saw = f"there is no work pool '{name}' (there: {others})"
            yield Finding("pool", Level.BROKEN, saw, f"'nasflow setup --work-pool {name}' creates it")
            return
        yield _pool_finding(pool)
        yield _limit_finding(pool)
        yield _worker_finding(client, pool)


def _pool_finding(pool: "WorkPool") -> Finding:
    saw = f"work pool '{pool.name}' of type {pool.type}"
    if pool.is_paused:
        mend = f"'prefect work-pool resume {pool.name}' lets it run searches again"
        return Finding("pool", Level.BROKEN, f"{saw} is paused", mend)
    if pool.type not in KNOWN_TYPES:
        mend = f"use one of type {', '.join(KNOWN_TYPES)}, or make sure that its jobs have nasflow"
        return Finding("pool", Level.WARNING, f"{saw}, and nasflow has no job template for that type", mend)
    return Finding("pool", Level.OK, saw)


def _limit_finding(pool: "WorkPool") -> Finding:
    limit, taken = pool.concurrency_limit, pool.active_slots or 0
    if limit is None:
        return Finding("limit", Level.OK, "the pool runs any number of searches at once")
    if limit == 0:
        return Finding(
            "limit",
            Level.BROKEN,
            "the pool has no slots (its concurrency limit is 0), so it runs no search",
            f"'nasflow setup --work-pool {pool.name} --slots N' gives it some",
        )
    return Finding("limit", Level.OK, f"the pool runs {limit} at once, {taken} now")


def _worker_finding(client: "SyncPrefectClient", pool: "WorkPool") -> Finding:
    from prefect.client.schemas.objects import WorkerStatus  # noqa: PLC0415 - slow

    workers = client.read_workers_for_work_pool(pool.name, limit=200)
    alive = [worker.name for worker in workers if worker.status is WorkerStatus.ONLINE]
    if alive:
        return Finding("worker", Level.OK, f"alive: {', '.join(alive)}")
    saw = f"work pool '{pool.name}' has no live worker, so scheduled runs wait"
    return Finding("worker", Level.WARNING, saw, f"start one: prefect worker start --pool {pool.name}")


def _check_automation() -> Iterator[Finding]:
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    from ...server.automations import ZOMBIES  # noqa: PLC0415 - slow

    frequency = get_current_settings().flows.heartbeat_frequency
    with prefect_client() as client:
        present = client.read_automations_by_name(ZOMBIES)
    if not present:
        yield Finding(
            "automation",
            Level.BROKEN,
            f"there is no automation '{ZOMBIES}', so a search stays Running for ever if its process is killed",
            "'nasflow setup' creates it",
        )
    elif not present[0].enabled:
        saw = f"'{ZOMBIES}' is switched off, so a search stays Running for ever if its process is killed"
        yield Finding("automation", Level.WARNING, saw, "switch it on in the UI under Automations")
    elif frequency is None:
        saw = "Prefect's heartbeats are switched off here, so the server does not notice if a search from here dies"
        yield Finding("automation", Level.WARNING, saw, "unset PREFECT_FLOWS_HEARTBEAT_FREQUENCY")
    else:
        within = getattr(present[0].trigger, "within", timedelta()).total_seconds()
        yield _heartbeat_finding(within, frequency)


def _heartbeat_finding(within: float, frequency: int) -> Finding:
    if within <= frequency:
        return Finding(
            "automation",
            Level.BROKEN,
            f"a search counts as dead {within:.0f} s after its last heartbeat, and searches from here send one every "
            f"{frequency} s",
            "set PREFECT_FLOWS_HEARTBEAT_FREQUENCY to the same number everywhere, then run 'nasflow setup' again",
        )
    return Finding("automation", Level.OK, f"a search is Crashed {within:.0f} s after its process is killed")
