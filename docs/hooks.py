"""Hooks of the docs site: its files are the repository's, and a public name without docstring is an error."""

import contextlib
import logging
import re
import tempfile
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/**/*", "examples/**/*", "deployments/**/*")
IDENTIFIER = re.compile(r"^::: (\S+)$", re.MULTILINE)
logger = logging.getLogger("mkdocs.hooks.docs")
_installed = tempfile.TemporaryDirectory(prefix="nasflow-docs-")


@event_priority(100)  # before mkdocstrings reads its options
def on_config(config: MkDocsConfig) -> None:
    """Lay the packages out as they are installed, `flows/` as `nasflow.flows`, and read the API from there."""
    package = Path(_installed.name, "nasflow")
    package.mkdir(exist_ok=True)
    for source in [*(ROOT / "nasflow").iterdir(), ROOT / "flows"]:
        if not (package / source.name).exists():
            (package / source.name).symlink_to(source)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_installed.name]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return files at their paths in the repository, so that links between them are the same here and in a checkout."""
    paths = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file() and ".py" not in path.suffix}
    names = {path.relative_to(ROOT).as_posix(): str(path) for path in sorted(paths)}
    return Files([File.generated(config, name, abs_src_path=path) for name, path in names.items()])


class Undocumented(griffe.Extension):
    """Warns, which strict makes an error, of public names in the API's pages that have no docstring."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at each module that a page of the API names."""
        for page in (ROOT / "docs" / "api").glob("*.md"):
            for name in IDENTIFIER.findall(page.read_text()):
                with contextlib.suppress(KeyError):  # mkdocstrings says that there is no such module
                    _look(pkg[name.removeprefix("nasflow.")])


def _look(thing: griffe.Object | griffe.Alias) -> None:
    if not thing.has_docstring:
        logger.warning(f"{thing.path} is public and has no docstring")
    for member in thing.members.values():
        if member.is_public and not member.is_special and not member.is_module and not _is_plain(thing, member):
            _look(member)


def _is_plain(owner: griffe.Object | griffe.Alias, member: griffe.Object | griffe.Alias) -> bool:
    """Whether it is a class's attribute, which the class's docstring describes, or a logger or type variable."""
    if not member.is_attribute or "property" in member.labels:
        return False
    return owner.is_class or str(member.value).startswith(("logging.", "TypeVar("))
