"""Builds the training service named in a config, also one that only flows can build."""

from pathlib import Path

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.config.services.union import ServiceConfig
from nasflow.training_service import make
from nasflow.training_service.base import TrainingService
from nasflow.training_service.local.service import RUNNER


def make_service(
    config: ServiceConfig, root: Path, base_dir: Path, secrets: JobSecrets = NO_SECRETS, *, runner: str = RUNNER
) -> TrainingService:
    """As `nasflow.training_service.make.make_service`, for every kind."""
    return make.make_service(config, root, base_dir, secrets, _prefect_service, runner=runner)


def _prefect_service(config: PrefectServiceConfig, root: Path, secrets: JobSecrets, runner: str) -> TrainingService:
    from .service import PrefectService  # noqa: PLC0415 - imports Prefect

    return PrefectService(config, root, runner, secrets=secrets)
