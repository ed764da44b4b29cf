"""Checks the `options` of the Slurm service."""

import re
from collections.abc import Iterator, Sequence

from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.errors import ServiceError

# The options of sbatch by which a job would not be found, would be several, or would be waited for.
_OWN = {
    *("-J", "--job-name", "-M", "--cluster", "--clusters"),
    *("-a", "--array", "-W", "--wait", "--wrap"),
}


def check_options(config: SlurmServiceConfig) -> None:
    """Raise ServiceError for options by which the search would lose its jobs, or jobs would not use their GPUs."""
    hidden = not config.gpus_per_job and "CUDA_VISIBLE_DEVICES" not in (config.env_setup or "")
    for name, value in _named(config.options):
        if name in _OWN:
            raise ServiceError(f"training_service.options: '{name}' is nasflow's own; leave it out")
        if hidden and _asks_for_gpus(name, value):
            raise ServiceError(
                f"training_service.options: '{name}' asks for GPUs; set gpus_per_job, too, or jobs do not use them"
            )


def _named(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each option, which may be in one text or in two."""
    for option, following in zip(options, [*options, ""][1:], strict=True):
        if option.startswith("--"):
            name, given, value = option.partition("=")
            yield name, value if given else following
        elif option.startswith("-"):
            yield option[:2], option[2:] or following


def _asks_for_gpus(name: str, value: str) -> bool:
    counted = [each for each in value.split(",") if re.split("[:=]", each)[-1] != "0"]
    if name == "--gres" or name.startswith("--tres-per-"):
        return any("gpu" in each for each in counted)
    return (name == "-G" or name.startswith("--gpus")) and bool(counted)
