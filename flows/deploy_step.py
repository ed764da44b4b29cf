"""A build step of `prefect deploy`: search configs as parameters of the deployments in a `prefect.yaml`.

A config written directly into `prefect.yaml` would be checked only by the server, which reads `1e-3` as text because of
YAML 1.1. Its relative paths would depend on the folder in which a worker starts a run.
"""

from pathlib import Path
from typing import Any

from nasflow.config.search import parse_config, read_values

from .deployment import config_parameter


def read_config(
    file: str, changes: dict[str, Any] | None = None, store: str = "", work_dir: str = ""
) -> dict[str, Any]:
    """Read a search config for a `prefect.yaml`, which uses it as `{{ ID.config }}` and `{{ ID.store }}`.

    Args:
        file: the config, relative to the folder of the `prefect.yaml`.
        changes: top-level keys that replace those of the file.
        store: replaces the config's store, unless empty.
        work_dir: replaces the config's work_dir, unless empty.

    Raises:
        ConfigError: the config is wrong or contains a password.
    """
    given = {key: text for key, text in (("store", store), ("work_dir", work_dir)) if text}
    values = {**read_values(Path(file)), **(changes or {}), **given}
    parameter = config_parameter(parse_config(values, f"{file} in prefect.yaml"))
    return {"config": parameter, "store": parameter["store"]}
