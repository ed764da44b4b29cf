"""A build step of `prefect deploy`: search configs as parameters of the deployments in a `prefect.yaml`.

Written out there, a config would be checked by the server alone, in which `1e-3` is a text and no number, as YAML 1.1
has it; and its relative paths would be taken to be in whatever folder a worker starts a run.
"""

from pathlib import Path
from typing import Any

from nasflow.config.search import load_config, parse_config

from .deployment import config_parameter


def read_config(
    file: str, changes: dict[str, Any] | None = None, store: str = "", work_dir: str = ""
) -> dict[str, Any]:
    """What a `prefect.yaml` may use of a search config, as `{{ ID.config }}` and `{{ ID.store }}`.

    Args:
        file: the config, relative to the folder of the `prefect.yaml`.
        changes: top-level keys of the config, in place of the file's.
        store: in place of the config's, unless it is empty.
        work_dir: the same.

    Raises:
        ConfigError: the config is wrong, or a password stands in it.
    """
    given = {key: text for key, text in (("store", store), ("work_dir", work_dir)) if text}
    values = {**load_config(Path(file)).model_dump(exclude_unset=True), **(changes or {}), **given}
    parameter = config_parameter(parse_config(values, f"{file} in prefect.yaml"))
    return {"config": parameter, "store": parameter["store"]}
