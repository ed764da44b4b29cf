"""`nasflow plan`: shows how trials of a search would be merged. Trains nothing and does not use the study."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasflow.config.search import ProgramConfig, SearchConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.union import ServiceConfig, each_service
from nasflow.errors import UserError
from nasflow.training_service.local.slots import slot_environments

from ..console import console

if TYPE_CHECKING:
    from nasflow.job.spec import JobSpec
    from nasflow.space.architecture import Architecture
    from nasflow.training.dry_run import JobPlan, UnitPlan

_IN_SLOT = "NASFLOW_PLANS_IN_SLOT"  # set in the process started for planning, so that it does not start another


def plan_search(config: SearchConfig, trials: int | None, draw: Path | None) -> None:
    """Print the plan of the first trials that random search would propose, and draw that of the largest unit.

    Args:
        trials: number of trials; None for a round's, or as many as a job trains at a time.
        draw: file for the picture; None for no picture.

    Raises:
        UserError: the config can't work, or there is nothing to draw.
    """
    terminal = console()
    if (parallel := config.evaluator.parallel) is not None and not parallel.min_parameters:
        raise UserError(
            f"evaluator.parallel trains every trial on {parallel.ranks} devices, in a job of its own: there is "
            "nothing to plan"
        )
    if not config.merge.enabled:
        raise UserError("merge.enabled is false, so every trial trains in a job of its own: there is nothing to plan")
    if isinstance(config.evaluator, ProgramConfig):
        kind = config.evaluator.kind
        raise UserError(f"evaluator.kind is {kind}: every trial trains in its own process, so there is nothing to plan")
    if draw is not None and not draw.absolute().parent.is_dir():
        raise UserError(f"--draw: there is no folder {draw.absolute().parent}")
    count = trials or min(config.budget.trials_per_round, config.merge.max_members)
    specs = _job_specs(config, count)
    from nasflow.training.dry_run import rehearse  # noqa: PLC0415 - slow

    from .view import print_plan  # noqa: PLC0415 - slow

    plans = []
    for number, spec in enumerate(specs, start=1):
        plans.append(rehearse(spec))
        name = config.name if len(specs) == 1 else f"{config.name}, job {number} of {len(specs)}"
        print_plan(terminal, name, [member.trial for member in spec.members], plans[-1])
    if draw is not None:
        _draw(config.name, plans, draw)
        terminal.print(f"drawn: {draw}", soft_wrap=True)


def slot_environment(config: ServiceConfig) -> dict[str, str]:
    """Return the environment variables of a job's process that differ here. They make measurements valid for jobs."""
    local = next((each for each in each_service(config) if isinstance(each, LocalServiceConfig)), None)
    if local is None or _IN_SLOT in os.environ:
        return {}
    environment = next(iter(slot_environments(local).values()))
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


def run_in_slot(environment: dict[str, str], arguments: Sequence[str]) -> int:
    """Run `nasflow` with these arguments in a process like a job's. Returns its exit code."""
    command = [sys.executable, "-P", "-m", "nasflow.flows.cli", *arguments]
    return subprocess.run(command, env=os.environ | environment | {_IN_SLOT: "1"}, check=False).returncode


def _job_specs(config: SearchConfig, count: int) -> list["JobSpec"]:
    """Return one job per data source, because the data may be searched, too."""
    from nasflow.evaluator.check import check_search  # noqa: PLC0415 - slow
    from nasflow.evaluator.loading.data_source import fingerprint  # noqa: PLC0415 - slow
    from nasflow.strategy.random_search import RandomSearch  # noqa: PLC0415 - slow

    space = check_search(config)
    jobs: defaultdict[str, dict[int, Architecture]] = defaultdict(dict)
    data: dict[str, Any] = {}
    parameters: dict[int, int] = {}
    for trial, architecture in enumerate(RandomSearch(space, config.seed).ask(count)):
        candidate = space.validate(architecture)
        if config.is_wide(candidate.parameters):
            continue
        name = fingerprint(candidate.config.data)
        data[name] = candidate.config.data
        jobs[name][trial] = architecture
        parameters[trial] = candidate.parameters
    if not jobs:
        raise UserError(
            f"evaluator.parallel.min_parameters: the first {count} trials have more, so that each trains on several "
            "devices, in a job of its own: there is nothing to plan"
        )
    return [_job_spec(config, data[name], members, parameters) for name, members in jobs.items()]


def _job_spec(
    config: SearchConfig, data: Any, members: Mapping[int, "Architecture"], parameters: Mapping[int, int]
) -> "JobSpec":
    from nasflow.job.placement import place_on_devices  # noqa: PLC0415
    from nasflow.job.spec import JobSpec, MemberSpec  # noqa: PLC0415
    from nasflow.trial import trial_seed  # noqa: PLC0415

    device = place_on_devices({trial: parameters[trial] for trial in members}, config.devices_of_job)
    specs = [
        MemberSpec(
            trial=trial,
            architecture=architecture,
            seed=trial_seed(config.seed, architecture),
            device=device[trial],
        )
        for trial, architecture in members.items()
    ]
    return JobSpec.of_search(config, "plan", data, specs, wide=False)


def _draw(name: str, plans: Sequence["JobPlan"], file: Path) -> None:
    from nasflow.merge.view.svg import plan_svg  # noqa: PLC0415 - slow

    from .view import names_of  # noqa: PLC0415 - slow

    units: list[tuple[JobPlan, UnitPlan]] = [(plan, unit) for plan in plans for unit in plan.units]
    if not units:
        raise UserError("there is nothing to draw, because no trials are fused; --trials N plans more of them")
    plan, unit = max(units, key=lambda pair: len(pair[1].members))
    names = names_of(plan)
    gathers = unit.outline.gathers
    title = (
        f"{name}: trials {names(unit.members)}",
        f"{unit.outline.fused} of {unit.outline.operations} operations fused, {gathers} gather{'s' * (gathers != 1)}; "
        f"{1e3 * unit.seconds:.2f} ms a step instead of {1e3 * unit.alone:.2f} ms",
    )
    file.write_text(plan_svg(unit.outline, [names([member]) for member in unit.members], unit.prices, title))
