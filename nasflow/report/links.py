"""Where a search keeps what it found, and the commands that look further, as Markdown."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from nasflow.config.search import SearchConfig


def links_markdown(config: SearchConfig, best: tuple[int, Path] | None) -> str:
    """The folders and commands of a study. A store's password is not shown; paths are those of this process.

    Args:
        config: of the study.
        best: number and checkpoint folder of its best trial, None if it has none.
    """
    places = [f"- the study's folder: `{config.study_dir}`", f"- its record: `{_store(config.store)}`"]
    if best is not None:
        places.insert(0, f"- checkpoints of the best, trial {best[0]}: `{best[1]}`")
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
            "Look further, on a machine that has the folder:",
            "```sh\n" + "\n".join(commands) + "\n```",
        ]
    )


def _store(url: str) -> str:
    """A store's URL that works from any folder, without its password."""
    if url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
        return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}"
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)
