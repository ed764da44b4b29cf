"""Where a search keeps its results, and commands to look at them, as Markdown."""

import shlex
from pathlib import Path

from nasflow.config.search import SearchConfig
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import EnvironmentSecret, SecretLocation


def links_markdown(config: SearchConfig, best: tuple[int, Path] | None) -> str:
    """Return the folders and commands of a study. A store's password is hidden; paths are those of this process.

    Args:
        config: the study's config.
        best: number and checkpoint folder of the best trial; None if no trial has a score.
    """
    places = [f"- the study's folder: `{config.study_dir}`", f"- its database: `{config.store}`"]
    if best is not None:
        places.insert(0, f"- checkpoints of the best model, trial {best[0]}: `{best[1]}`")
    if config.checkpoint.url is not None:
        places.append(f"- copies of all checkpoints: `{config.checkpoint.url}`")
    options = f"{config.name} --store {_store_option(config.store)}"
    commands = [
        f"nasflow show {options}",
        f"nasflow leaderboard {options} --top 20",
        f"nasflow report {options} --html {config.name}.html",
        f"nasflow export {options} --out best-of-{config.name}",
    ]
    return "\n\n".join(
        [
            f"# Where {config.name} is",
            "\n".join(places),
            "To see more, on a machine that has the folder:",
            "```sh\n" + "\n".join(commands) + "\n```",
        ]
    )


def _store_option(store: SecretLocation) -> str:
    """The store for a shell. What no shell can read is expected in the variable that nasflow reads."""
    if isinstance(store, SecretUrl):
        return shlex.quote(str(store))
    return f'"${store.env if isinstance(store, EnvironmentSecret) else "NASFLOW_STORE"}"'
