"""The `nasflow` command. Everything slow is imported by the command that needs it."""

import errno
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from nasflow.errors import NasflowError, UserError

from .commands.console import console
from .commands.deploy.options import (
    DEFAULT_POOL,
    Cron,
    DeploymentName,
    Interval,
    Overlap,
    Overlaps,
    Rrule,
    Timezone,
    WorkPool,
)
from .commands.options import (
    DEFAULT_STORE,
    MOST,
    AsJson,
    Grace,
    KeepServer,
    OlderThan,
    Patience,
    StoreUrl,
    StudyName,
    TakeOver,
    Verbose,
    exit_with,
    load_search,
    load_study,
    own_server,
    print_out,
)
from .commands.report_metric import report_metric
from .commands.results import export, leaderboard, report, show, studies
from .commands.server import server
from .server.errors import clear_prefect_errors
from .server.lost_threads import end_without_event_loops

app = typer.Typer(
    help="Neural architecture search as a Prefect pipeline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

hosts = typer.Typer(help="The hosts of the SSH service.", no_args_is_help=True)
app.add_typer(hosts, name="hosts")
services = typer.Typer(help="The training services.", no_args_is_help=True)
app.add_typer(services, name="services")
app.add_typer(server, name="server")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The search config.")]
OptionalConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="A search config.")]
_LACKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}  # disk, open files


@app.command()
def run(
    config: ConfigFile,
    export_best: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the trained best model into this folder.")
    ] = None,
    keep_server: KeepServer = None,
    verbose: Verbose = False,
    take_over: TakeOver = False,
) -> None:
    """Run a search to the end of its budget, or resume it. Ctrl-C leaves it resumable."""
    with own_server(verbose, keep_server):
        from .commands.run.command import run_search  # noqa: PLC0415

        exit_with(run_search(load_search(config), export_best, take_over))


@app.command()
def retry(
    study: StudyName,
    store: StoreUrl = DEFAULT_STORE,
    verbose: Verbose = False,
    take_over: TakeOver = False,
) -> None:
    """Train a study's failed trials again, and only those."""
    with own_server(verbose):
        from .commands.run.command import run_retry  # noqa: PLC0415

        exit_with(run_retry(load_study(store, study).config, take_over))


@app.command()
def recover(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="Resume this study, whatever ended it; by default all dead ones."),
    ] = None,
    *,
    store: StoreUrl = DEFAULT_STORE,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.yaml", help="The search config that names the store.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    grace: Grace = 60,
    verbose: Verbose = False,
) -> None:
    """Resume searches after their controller died, and wait for their end. Meant to be called by a schedule.

    Searches that are finished, running, cancelled or failed are left alone.
    """
    from .commands.run.recover import recover_one  # noqa: PLC0415
    from .recovery.resume import recover_all  # noqa: PLC0415

    url = load_search(config).store if config else store
    if study is not None:
        with own_server(verbose) if not dry_run else nullcontext():
            exit_with(recover_one(load_study(url, study), dry_run))
    else:
        exit_with(
            recover_all(url, dry_run, timedelta(seconds=grace), lambda line: console().print(line, soft_wrap=True))
        )


@app.command()
def cleanup(study: StudyName, store: StoreUrl = DEFAULT_STORE, take_over: TakeOver = False) -> None:
    """Stop what a dead controller left running, here and on the study's hosts. Results are kept, for resuming it."""
    from .commands.cleanup import clean_up  # noqa: PLC0415

    clean_up(load_study(store, study).config, take_over)


@app.command()
def stop_trial(
    study: StudyName,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, max=MOST, help="The trial's number.")],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """End one trial of a running search after its present epoch, on the machine that runs the search."""
    from .commands import stop_trial  # noqa: PLC0415

    stop_trial.stop_trial(load_study(store, study), number)


@app.command()
def setup(
    config: OptionalConfigFile = None,
    *,
    work_pool: WorkPool = DEFAULT_POOL,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Device slots that all searches of the pool may use together.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Create this Secret block too; its value is $NAME, or is asked for."),
    ] = None,
    notify_best: Annotated[
        str | None, typer.Option(metavar="TYPE/NAME", help="Notify of every new best through this notification block.")
    ] = None,
    pause_without_gain: Annotated[
        int | None, typer.Option(min=1, metavar="ROUNDS", help="Pause a search after this many rounds without gain.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Prepare the Prefect server in use: work pool, its limit, the automation for killed searches, secrets.

    Can be run again at any time. CONFIG.yaml says which secrets are needed and how many slots a search takes.
    """
    from .commands.setup.command import set_up_server, setup_hints, setup_json, setup_table  # noqa: PLC0415

    made = set_up_server(
        load_search(config) if config else None,
        work_pool,
        slots=slots,
        secrets=secret or [],
        notify_best=notify_best,
        pause_without_gain=pause_without_gain,
        verbose=verbose,
    )
    print_out(setup_json(made) if as_json else setup_table(made))
    for line in [] if as_json else setup_hints(work_pool):
        console().print(line, soft_wrap=True)


@app.command()
def doctor(
    config: OptionalConfigFile = None,
    *,
    store: StoreUrl = DEFAULT_STORE,
    work_pool: WorkPool = DEFAULT_POOL,
    as_json: AsJson = False,
) -> None:
    """Check that everything is in order, and say how to fix what is not. Changes nothing; exit code 2 if broken."""
    from .commands.doctor.command import examine  # noqa: PLC0415
    from .commands.doctor.findings import Level, findings_json, findings_lines  # noqa: PLC0415

    findings = examine(config, store, work_pool)
    if as_json:
        print_out(findings_json(findings))
    else:
        for line in findings_lines(findings):
            console().print(line, soft_wrap=True)  # commands in it stay whole
    exit_with(2 if any(finding.level is Level.BROKEN for finding in findings) else 0)


@app.command()
def deploy(
    config: ConfigFile,
    *,
    name: DeploymentName = None,
    cron: Cron = None,
    interval: Interval = None,
    rrule: Rrule = None,
    timezone: Timezone = None,
    work_pool: WorkPool = DEFAULT_POOL,
    overlap: Overlaps = Overlap.WAIT,
) -> None:
    """Deploy a search to the Prefect server in use, for workers to run on demand or on a schedule."""
    from .commands.deploy.command import deploy_search  # noqa: PLC0415
    from .commands.deploy.schedules import When  # noqa: PLC0415

    deploy_search(load_search(config), name, When(cron, interval, rrule, timezone), work_pool, overlap)


@app.command()
def serve(
    config: ConfigFile,
    *,
    name: DeploymentName = None,
    cron: Cron = None,
    interval: Interval = None,
    rrule: Rrule = None,
    timezone: Timezone = None,
    overlap: Overlaps = Overlap.WAIT,
) -> None:
    """Deploy a search and start its runs from this process, without a worker. Ctrl-C ends it."""
    from .commands.deploy.schedules import When  # noqa: PLC0415
    from .commands.deploy.serve import serve_search  # noqa: PLC0415

    serve_search(load_search(config), name, When(cron, interval, rrule, timezone), overlap)


@app.command()
def purge(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Pattern of study names, such as 'nightly-*'.")],
    *,
    store: StoreUrl = DEFAULT_STORE,
    older_than: OlderThan = None,
    keep: Annotated[int | None, typer.Option(metavar="COUNT", min=0, help="Keep this many of the newest.")] = None,
    export_best: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the best model of each into this folder first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove old studies with their folders and checkpoints, except those that a controller holds."""
    from .purge import Purge, purge_studies  # noqa: PLC0415

    rule = Purge(pattern, older_than, keep, export_best, dry_run)
    gone = purge_studies(store, rule, lambda line: console().print(line, soft_wrap=True))
    exit_with(0 if gone else 1)


@app.command()
def validate(config: ConfigFile) -> None:
    """Check a config, its space, its data and its strategy without training anything."""
    from .session.checks import check_custom_services, checked  # noqa: PLC0415

    parsed = load_search(config)
    check_custom_services(parsed)
    space, _ = checked(parsed)
    count = space.count(limit=100 if space.is_real else 1000)
    console().print(f"{config} is valid: {count} architectures, strategy {parsed.strategy.kind}.", soft_wrap=True)


@app.command()
def plan(
    config: ConfigFile,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials; by default a round's, or as many as fit in a job.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sample with this seed instead of the config's.")] = None,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the plan of the largest unit into this file.")
    ] = None,
) -> None:
    """Show how trials would be merged: what is fused, what is not and why, and the expected speed-up. Trains nothing.

    Kernels that have not been measured on this machine are measured now, which takes a few seconds.
    """
    from .commands.plan.command import plan_search, run_in_slot, slot_environment  # noqa: PLC0415

    parsed = load_search(config)
    if lacking := slot_environment(parsed.training_service):
        options = {"--trials": trials, "--seed": seed, "--draw": draw}
        given = [str(part) for name, value in options.items() if value is not None for part in (name, value)]
        exit_with(run_in_slot(lacking, ["plan", str(config), *given]))
    else:
        plan_search(parsed if seed is None else parsed.model_copy(update={"seed": seed}), trials, draw)


@hosts.command()
def check(config: ConfigFile, as_json: AsJson = False) -> None:
    """Check whether a config's hosts can run jobs, and say what to do where they can't. Leaves no files on them."""
    from .commands.check.hosts import check_hosts, hosts_json, hosts_table  # noqa: PLC0415
    from .commands.check.problems import print_problems  # noqa: PLC0415

    found = check_hosts(load_search(config))
    print_out(hosts_json(found) if as_json else hosts_table(found))
    if not as_json:
        print_problems(found, "hosts")
    exit_with(0 if all(host.in_order for host in found) else 2)


@services.command("check")
def check_services(
    config: ConfigFile,
    seconds: Patience = 60,
    as_json: AsJson = False,
) -> None:
    """Run a small job on each of a config's training services, and say what is wrong and how to mend it.

    Shows what jobs find there: Python, torch, GPUs, disk, clock. Leaves nothing there. Exit code 2 for a problem.
    """
    from .commands.check.problems import print_problems  # noqa: PLC0415
    from .commands.check.services import check_all, services_json, services_table  # noqa: PLC0415

    found = check_all(load_search(config), seconds)
    print_out(services_json(found) if as_json else services_table(found))
    if not as_json:
        print_problems(found, "training services")
    exit_with(0 if all(service.in_order for service in found) else 2)


for command in (studies, show, leaderboard, report, export, report_metric):
    app.command()(command)


@app.command()
def from_nni(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yml", help="The config of an NNI experiment.")],
) -> None:
    """Print the search config for an NNI experiment, and say what has to be done by hand."""
    from .commands.from_nni import print_translated  # noqa: PLC0415

    print_translated(config)


@app.command()
def schema() -> None:
    """Print the JSON schema of the search config."""
    from nasflow.config.search import SearchConfig  # noqa: PLC0415

    print_out(SearchConfig.model_json_schema())


def main() -> None:
    """Run the command line. A user's mistake gives one line on standard error and exit code 2, without a traceback.

    So does a machine that lacks something, but with code 1.
    """
    end_without_event_loops()
    try:
        with clear_prefect_errors():
            app()
    except NasflowError as error:
        console(stderr=True).print(f"error: {error}", style="red")
        sys.exit(2 if isinstance(error, UserError) else 1)
    except OSError as error:
        lacks = error.errno in _LACKS
        if not lacks and error.filename is None:
            raise
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        console(stderr=True).print(f"error: {what}; mend this, and run the command again", style="red")
        sys.exit(1 if lacks else 2)


if __name__ == "__main__":
    main()
