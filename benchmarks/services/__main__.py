"""The overhead of a training service per job, and its throughput of short trials in a search.

`python -m benchmarks.services` starts real servers on this machine, an sshd as a host and, where its programs are
installed and this is root, a Slurm, and measures, interleaved:

- jobs that do nothing, one after the other on one slot: seconds from `submit` until the end is known and the events
  are read, after a warm-up. With `reuse: false` each job is a program that imports what training needs;
- the same, forty of them queued at once on two slots: jobs a second.

`python -m benchmarks.services --searches` runs the search of `benchmarks.end_to_end`, with enough epochs that a trial
takes a second in plain PyTorch, through `nasflow run` on the local service and on the host, and through NNI 3.0's local
and remote service, two slots or concurrent trials each: trials a minute, from the first trial's start to the last
one's end and from command to result.

`python -m benchmarks.services --same-result KIND` (or `all`) runs the search of `make search` on real servers of that
kind, and compares its leaderboard with that of `local` to the last bit; exit code 1 if they differ.

`python -m benchmarks.services --many KIND --jobs 1000` queues so many jobs of a second at once, with 16 slots, and
shows the overhead of a job, the requests to the cluster, and the controller's CPU time and memory.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.commands import PrefectServer
from benchmarks.end_to_end import Record, measure
from benchmarks.searches import SLOTS, Contestant, NasflowRun, NniRun, Workload
from benchmarks.services.many_jobs import KINDS, many_jobs
from benchmarks.services.many_jobs import show as show_many
from benchmarks.services.same_result import same_result
from benchmarks.services.set_ups import SET_UPS
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.testing.service_jobs import script
from nasflow.training_service.base import TrainingService
from nasflow.training_service.cluster.slurm import SlurmService
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.ssh.service import SshService
from tests.slurm import lacking, start_slurm
from tests.sshd import Sshd, start_sshd

RUNNER = "nasflow.testing.scripted_job:run_job_file"
QUEUED = 40
MANY_SLOTS = 16

Make = Callable[[Path, int], TrainingService]


def ssh_config(host: Sshd, slots: int, reuse: bool = True) -> dict[str, Any]:
    """Return the config section of a service on one host."""
    return {
        "kind": "ssh",
        "hosts": [host.config_host(slots=slots)],
        "known_hosts": str(host.known_hosts),
        "ssh_config": "/dev/null",
        "reuse": reuse,
    }


@contextmanager
def services(folder: Path) -> Iterator[dict[str, Make]]:
    """Return a function for each service that makes it, given a root and a number of slots."""
    with ExitStack() as stack:
        host = stack.enter_context(start_sshd(folder / "host"))
        code = folder / "code"
        code.mkdir()

        def local(reuse: bool) -> Make:
            return lambda root, slots: LocalService(LocalServiceConfig(slots=slots, reuse=reuse), root, RUNNER)

        def ssh(reuse: bool) -> Make:
            return lambda root, slots: SshService(
                SshServiceConfig.model_validate(ssh_config(host, slots, reuse)), root, code, RUNNER
            )

        makes = {
            "local": local(reuse=True),
            "ssh": ssh(reuse=True),
            "local, reuse: false": local(reuse=False),
            "ssh, reuse: false": ssh(reuse=False),
        }
        if reason := lacking():
            print(f"no Slurm: {reason}", file=sys.stderr)
        else:
            stack.enter_context(start_slurm())
            makes["slurm"] = lambda root, slots: SlurmService(
                SlurmServiceConfig(max_jobs=slots, poll_seconds=0.1), root, RUNNER
            )
        yield makes


def one_after_the_other(service: TrainingService, count: int, prefix: str) -> list[float]:
    """Return the seconds of each of `count` empty jobs, from `submit` until its events are read."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        handle = service.submit(script(f"{prefix}-{number}", ["epoch", 1]))
        while not service.status(handle).status.finished:
            time.sleep(0.005)
        if len(service.events(handle)[0]) != 3:  # started, epoch, ended
            raise RuntimeError(f"a job of {service} did not come to its end: {service.log_tail(handle)}")
        seconds.append(time.perf_counter() - began)
    return seconds


def queued_at_once(service: TrainingService, count: int, prefix: str) -> float:
    """Run `count` empty jobs that are queued at once. Return jobs per second."""
    began = time.perf_counter()
    handles = [service.submit(script(f"{prefix}-{number}", ["epoch", 1])) for number in range(count)]
    while not all(service.status(handle).status.finished for handle in handles):
        time.sleep(0.02)
    return count / (time.perf_counter() - began)


def overhead(repeats: int, jobs: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Measure the overhead of every service, in turns."""
    seconds: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with services(folder) as makes:
        for name, make in makes.items():
            few = jobs if "reuse" not in name else max(2, jobs // 5)
            for slots in (1, SLOTS):
                service = make(folder / f"{name}-{slots}".replace(" ", ""), slots)
                service.validate()
                service.prepare()
                try:
                    one_after_the_other(service, 2 * slots, "warm-up")
                    for repeat in range(repeats):
                        if slots == 1:
                            seconds.setdefault(name, []).extend(one_after_the_other(service, few, f"one-{repeat}"))
                        else:
                            queued = QUEUED if few == jobs else QUEUED // 5
                            rates.setdefault(name, []).append(queued_at_once(service, queued, f"many-{repeat}"))
                finally:
                    service.cleanup()
    return {
        name: {
            "seconds_a_job": statistics.median(seconds[name]),
            "slowest": max(seconds[name]),
            "jobs_a_second": statistics.median(rates[name]),
        }
        for name in seconds
    }


def show_overhead(results: dict[str, dict[str, Any]]) -> None:
    """As a table."""
    table = Table(
        "service", "s a job (median)", "slowest", f"jobs a second, {SLOTS} slots", title="jobs that do nothing"
    )
    for name, found in results.items():
        row = [found["seconds_a_job"], found["slowest"], found["jobs_a_second"]]
        table.add_row(name, *(f"{value:.3f}" for value in row))
    Console().print(table)


def race(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the searches, in turns."""
    workload = Workload(options.trials, options.epochs, rounds=1, seed=0)
    little = Workload(trials=2, epochs=1, rounds=1, seed=1)
    console = Console()
    with start_sshd(folder / "host") as host:
        server = PrefectServer(folder / "prefect")
        try:

            def contestants(workload: Workload, nni_trials: int) -> list[Contestant]:
                return [
                    NasflowRun(workload, server),
                    NasflowRun(workload, server, "nasflow run, ssh", ssh_config(host, SLOTS)),
                    NniRun(workload, nni_trials, options.work_dir),
                    NniRun(workload, nni_trials, options.work_dir, host),
                ]

            records = [Record(contestant) for contestant in contestants(workload, options.nni_trials)]
            for record, small in zip(records, contestants(little, 2), strict=True):
                console.log(f"warming up {record.contestant.name}")
                small.prepare()
                trial_run = Record(small)
                measure(trial_run, server, folder / f"warm-up-{len(list(folder.iterdir()))}", seed=0)
                record.error = trial_run.error
            for repeat in range(options.repeats):
                for index, record in enumerate(records):
                    console.log(f"repeat {repeat + 1} of {options.repeats}: {record.contestant.name}")
                    measure(record, server, folder / f"{repeat}-{index}", seed=1000 * repeat)
        finally:
            server.close()
    return {record.contestant.name: _rates(record) for record in records}


def _rates(record: Record) -> dict[str, Any]:
    if record.error is not None:
        return {"error": record.error}
    span = statistics.median(outcome.span for outcome in record.outcomes)
    wall = statistics.median(outcome.wall for outcome in record.outcomes)
    return {
        "trials": record.trials,
        "trials_a_minute": 60 * record.trials / span,
        "trials_a_minute_with_start": 60 * record.trials / wall,
        "accuracy": statistics.mean(record.accuracies()),
    }


def show_race(results: dict[str, dict[str, Any]]) -> None:
    """As a table."""
    table = Table("contestant", "trials", "trials a minute", "with start and end", "accuracy", title="searches")
    for name, found in results.items():
        if "error" in found:
            table.add_row(name, "-", found["error"].splitlines()[-1][:80], "-", "-")
        else:
            rates = [f"{found[key]:.1f}" for key in ("trials_a_minute", "trials_a_minute_with_start")]
            table.add_row(name, str(found["trials"]), *rates, f"{found['accuracy']:.4f}")
    Console().print(table)


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10, help="one after the other, a repeat")
    parser.add_argument("--repeats", type=int, default=None, help="default: 5, of searches 2")
    parser.add_argument("--searches", action="store_true")
    parser.add_argument("--trials", type=int, default=64, help="of nasflow's searches")
    parser.add_argument("--nni-trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--work-dir", type=Path, default=Path("benchmark-runs"), help="for NNI's environment")
    parser.add_argument("--same-result", metavar="KIND", choices=["all", *SET_UPS], help="compare leaderboards")
    parser.add_argument("--many", metavar="KIND", choices=KINDS, help="queue --jobs jobs of a second at once")
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.searches else 5)
    options.work_dir = options.work_dir.absolute()
    with tempfile.TemporaryDirectory(prefix="nasflow-services-", ignore_cleanup_errors=True) as name:
        if options.same_result:
            results = same_result([*SET_UPS] if options.same_result == "all" else [options.same_result], Path(name))
        elif options.many:
            results = many_jobs(options.many, options.jobs, MANY_SLOTS, Path(name))
            show_many(options.many, results)
        elif options.searches:
            results = race(options, Path(name))
            show_race(results)
        else:
            results = overhead(options.repeats, options.jobs, Path(name))
            show_overhead(results)
    print(json.dumps({"arguments": {key: str(value) for key, value in vars(options).items()}, "results": results}))
    if options.same_result and any(one.get("error") or one["different"] or one["left"] for one in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
