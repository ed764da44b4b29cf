"""`nasflow doctor`: checks everything that searches need, and says how to fix what is wrong. Changes nothing."""

from pathlib import Path

from nasflow.config.search import SearchConfig, load_config
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.errors import ConfigError

from ...server.secrets import use_prefect_blocks
from .findings import Finding, Level, examined
from .machine import check_folder, check_kernels, check_packages, check_slots, check_store
from .prefect import check_prefect, find_server


def examine(config_file: Path | None, store: str, pool: str) -> list[Finding]:
    """Run every check in turn, whatever the others find.

    Args:
        config_file: the search config; its training service, store and work_dir are checked, too.
        store: SQLAlchemy URL, used if there is no config.
        pool: name of the work pool.
    """
    is_kept = find_server()
    use_prefect_blocks()
    findings = examined("packages", check_packages) + examined("kernels", check_kernels)
    config = None
    if config_file is not None:
        try:
            config = load_config(config_file)
        except ConfigError as error:
            findings.append(Finding("config", Level.BROKEN, str(error)))
        else:
            findings.append(Finding("config", Level.OK, f"{config_file} is valid"))
            findings += _check_config(config)
    url = SecretUrl(store) if config is None else config.store
    findings += examined("store", lambda: check_store(url))
    findings += check_prefect(pool, is_kept)
    return findings


def _check_config(config: SearchConfig) -> list[Finding]:
    folder = examined("work_dir", lambda: check_folder("work_dir", config.work_dir))
    if any(finding.level is Level.BROKEN for finding in folder):
        return folder  # the service can't write there either
    return folder + examined("slots", lambda: check_slots(config))
