"""Where a search keeps its results, and commands to look at them, as Markdown."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from nasflow.config.search import SearchConfig


def links_markdown(config: SearchConfig, best: tuple[int, Path] | None) -> str:
    """Return the folders and commands of a study. A store's password is hidden; paths are those of this process.

    Args:
        config: the study's config.
        best: number and checkpoint folder of the best trial; None if no trial has a score.
    """
    places = [f"- the study's folder: `{config.study_dir}`", f"- its database: `{_store(config.store)}`"]
    if best is not None:
        places.insert(0, f"- checkpoints of the best model, trial {best[0]}: `{best[1]}`")
    if config.checkpoint.url is not None:
        places.append(f"- copies of all checkpoints: `{config.checkpoint.url}`")
    options = f"{config.name} --store {shlex.quote(_store(config.store))}"
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


def _store(url: str) -> str:
    """The URL of a store without its password; it works from any folder."""
    if url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
        return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}"
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)
