"""Many short jobs on a training service, queued at once, and what that costs the controller and the cluster.

Part of `python -m benchmarks.services`. The kind `simulated` is a cluster of 10,000 nodes without processes: each job
ends a minute after it was given.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.commands import PrefectServer
from benchmarks.services.set_ups import SET_UPS
from nasflow.config.services.union import ServiceConfig
from nasflow.flows.pool.make import make_service
from nasflow.job.events import Ended, EventWriter, Started, parse_event
from nasflow.job.spec import job_dir
from nasflow.testing.service_jobs import script
from nasflow.training_service.base import JobHandle, JobState, JobStatus, TrainingService
from nasflow.training_service.cluster.base import ClusterService
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen
from tests.flows.pool.pools import use
from tests.flows.searches import PrefectServer as ServerOfTests
from tests.postgresql import PostgresqlServer, for_prefect

RUNNER = "nasflow.testing.scripted_job:run_job_file"
SIMULATED = "simulated"
KINDS = [*SET_UPS, SIMULATED]
JOB_SECONDS = 1.0
_SIMULATED_NODES, _SIMULATED_SECONDS = 10_000, 60.0
_POLL_SECONDS = 0.5
_SECTION: TypeAdapter[Any] = TypeAdapter(ServiceConfig)


class Simulated(ClusterService):
    """A cluster without processes."""

    kind = SIMULATED

    def __init__(self, root: Path, max_jobs: int):
        super().__init__(root, max_jobs, _POLL_SECONDS, 3600.0, RUNNER)
        self._ends: dict[str, float] = {}
        self._runs: dict[str, Run] = {}

    def validate(self) -> None:
        """There is nothing to check."""

    def _give(self, run: Run) -> None:
        run.begin()
        self._runs[run.name], self._ends[run.name] = run, time.monotonic() + _SIMULATED_SECONDS

    def _look(self) -> Mapping[str, Seen]:
        now = time.monotonic()
        for name in [name for name in self._runs if now >= self._ends[name]]:
            self._come_to_end(self._runs.pop(name))
        return dict.fromkeys(self._runs, Seen(JobStatus.RUNNING, ""))

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            self._runs.pop(name, None)

    def _come_to_end(self, run: Run) -> None:
        with closing(EventWriter(job_dir(run.root, run.job_id) / "events.jsonl")) as events:
            events.write(Started(resumed={}))
            events.write(Ended())
        run.end(JobState(status=JobStatus.EXITED, exit_code=0))


def many_jobs(kind: str, jobs: int, slots: int, folder: Path) -> dict[str, Any]:
    """Run so many jobs of a second each. Return figures by name."""
    root = folder / "root"
    if kind == SIMULATED:
        return _measure(Simulated(root, _SIMULATED_NODES), jobs, _SIMULATED_NODES, _SIMULATED_SECONDS, requests=list)
    with (
        closing(PostgresqlServer()) as database,  # for so many flow runs at once, SQLite locks too long
        closing(PrefectServer(folder / "server", for_prefect(database.url, "postgres"))) as server,
        use(ServerOfTests(server.environment["PREFECT_API_URL"], server.environment)),
        SET_UPS[kind](folder / "servers", server) as section,
        _counting() as sent,
    ):
        service = make_service(_SECTION.validate_python({**section, "max_jobs": slots}), root, folder, runner=RUNNER)
        audit = Path(section["kubeconfig"]).with_name("audit.log") if "kubeconfig" in section else None
        return _measure(
            service, jobs, slots, JOB_SECONDS, requests=lambda: sent if audit is None else _of_nasflow(audit)
        )


def show(kind: str, figures: Mapping[str, Any]) -> None:
    """As a table."""
    table = Table("", "", title=f"{figures['jobs']} jobs on {kind}, {figures['slots']} slots")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _measure(
    service: TrainingService, jobs: int, slots: int, job_seconds: float, *, requests: Callable[[], Sequence[str]]
) -> dict[str, Any]:
    service.validate()
    service.prepare()
    process = psutil.Process()
    began, cpu_before = time.perf_counter(), time.thread_time()  # of this thread: stand-ins for nodes are others
    left = [service.submit(script(f"job-{number}", ["sleep", job_seconds])) for number in range(jobs)]
    queued = time.perf_counter() - began
    steps, over, lost = [_Step(0, time.thread_time(), process.memory_info().rss)], 0, 0
    while left:
        waiting = []
        for handle in left:
            state = service.status(handle)
            if state.status is JobStatus.LOST:  # a search submits it again, too
                service.submit(script(handle.job_id, ["sleep", job_seconds]))
                lost += 1
            if not state.status.finished or state.status is JobStatus.LOST:
                waiting.append(handle)
                continue
            _check_end(service, handle, state)
            over += 1
            if over >= len(steps) * jobs / 10:
                steps.append(_Step(over, time.thread_time(), process.memory_info().rss))
        left = waiting
        time.sleep(_POLL_SECONDS)
    seconds = time.perf_counter() - began
    sent = requests()
    service.cleanup()
    return {
        "jobs": jobs,
        "seconds_of_a_job": job_seconds,
        "slots": slots,
        "jobs_that_were_lost_and_submitted_again": lost,
        "seconds": seconds,
        "seconds_to_queue_them": queued,
        "overhead_of_a_job_in_seconds": seconds * slots / jobs - job_seconds,
        "requests_a_second": len(sent) / seconds,
        "requests_a_job": len(sent) / jobs,
        "lists_without_selector_or_limit": sum(
            uri.startswith("list ") and not ("labelSelector=" in uri and "limit=" in uri) for uri in sent
        ),
        "controller_cpu_ms_a_job": 1e3 * (steps[-1].cpu - cpu_before) / jobs,
        "of_that_to_queue_it": 1e3 * (steps[0].cpu - cpu_before) / jobs,
        "controller_cpu_ms_a_job_first_to_last_tenth": [
            round(1e3 * (after.cpu - before.cpu) / (after.jobs - before.jobs), 1) for before, after in pairwise(steps)
        ],
        "controller_memory_mb_first_to_last_tenth": [round(step.memory / 2**20) for step in steps[1:]],
    }


class _Step:
    def __init__(self, jobs: int, cpu: float, memory: int):
        self.jobs, self.cpu, self.memory = jobs, cpu, memory


def _check_end(service: TrainingService, handle: JobHandle, state: JobState) -> None:
    events, _ = service.events(handle)
    if state.exit_code != 0 or not events or not isinstance(parse_event(events[-1]), Ended):
        raise RuntimeError(f"{handle.job_id} did not come to its end: {state}\n{service.log_tail(handle)}")


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Yield what grows by each HTTP request of this process, such as `POST /api/flow_runs/filter`."""
    sent: list[str] = []
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    def counted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        sent.append(f"{request.method} {request.url.path}")
        return send(client, request, **options)

    async def counted_async(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        sent.append(f"{request.method} {request.url.path}")
        return await send_async(client, request, **options)

    httpx.Client.send, httpx.AsyncClient.send = counted, counted_async  # type: ignore[method-assign,assignment]
    try:
        yield sent
    finally:
        httpx.Client.send, httpx.AsyncClient.send = send, send_async  # type: ignore[method-assign]


def _of_nasflow(audit: Path) -> list[str]:
    records = map(json.loads, audit.read_text().splitlines())
    return [f"{record['verb']} {record['requestURI']}" for record in records if record.get("userAgent") == "nasflow"]
