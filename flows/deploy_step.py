"""A build step of `prefect deploy`: search configs as parameters of the deployments in a `prefect.yaml`."""

from pathlib import Path
from typing import Any

from nasflow.config import load_config, parse_config

from .deployment import config_parameter


def read_config(file: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a `prefect.yaml` may use of a search config, as `{{ ID.config }}` and `{{ ID.store }}`.

    Args:
        file: the config, relative to the folder of the `prefect.yaml`.
        changes: top-level keys of the config, in place of the file's.

    Raises:
        ConfigError: the config is wrong, or a password stands in it.
    """
    config = load_config(Path(file))
    if changes:
        config = parse_config({**config.model_dump(exclude_unset=True), **changes}, f"{file}, with changes")
    parameter = config_parameter(config)
    return {"config": parameter, "store": parameter["store"]}
