"""Finds the user's code that the targets of a search need: their files, and the local files that these import."""

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nasflow.errors import UserError
from nasflow.load_target import imported_modules, target_file

_LARGE = 10 * 2**20  # bytes of a file, or of all files of a package, that are data rather than a part of the code
_Find = Callable[[Path, str], list[Path]]

logger = logging.getLogger(__name__)


def collect_code(targets: Iterable[str], base_dir: Path) -> tuple[dict[Path, Path], dict[str, str]]:
    """Return the files to copy, and the targets relative to the copy.

    Files in `base_dir` keep their relative place. A target's file elsewhere goes to the top, with the files that it
    imports from its folder. Installed packages are not copied.

    Returns:
        Source files by their place in the copy, and new targets by old ones.

    Raises:
        UserError: two different files would have the same place.
    """
    base_dir = base_dir.resolve()
    files: dict[Path, Path] = {}
    find = functools.cache(_module_in)
    renamed: dict[str, str] = {}
    for target in targets:
        place, _, name = target.rpartition(":")
        file = target_file(target, base_dir)
        folder = file.parent if file else base_dir
        renamed[target] = f"{_place(file, base_dir, folder).as_posix()}:{name}" if file else target
        folders = [folder, base_dir]  # where nasflow.load_target lets Python look
        for source in _closure([file] if file else _local_module(place, folders, find), folders, find):
            to = _place(source, base_dir, folder)
            if files.setdefault(to, source) != source:
                raise UserError(f"can't export the code: {files[to]} and {source} would both be {to}; rename one")
    return files, renamed


def named_files(params: Any, base_dir: Path) -> Iterator[tuple[Path, Path]]:
    """Yield of the files in `base_dir` that params name by relative paths, but for large ones, place and source."""
    if isinstance(params, Mapping):
        params = list(params.values())
    if isinstance(params, list | tuple):
        for value in params:
            yield from named_files(value, base_dir)
    elif isinstance(params, str) and not (place := Path(params)).is_absolute() and ".." not in place.parts:
        file = base_dir / place
        if os.path.isfile(file) and file.stat().st_size <= _LARGE:  # noqa: PTH113  # False for what can be no path
            yield place, file


def _beside(package: Path) -> list[Path]:
    """The files of a package that are no Python, such as a vocabulary; none if they are large."""
    files = [file for file in sorted(package.rglob("*")) if file.suffix not in (".py", ".pyc") and file.is_file()]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(package).parts)]
    if sum(file.stat().st_size for file in files) <= _LARGE:
        return files
    logger.warning("of %s only the Python files are exported, because its other files are large", package)
    return []


def _place(file: Path, base_dir: Path, folder: Path) -> Path:
    """The place of a file in the copy: relative to `base_dir` if it is in it, otherwise to its target's `folder`."""
    return file.relative_to(base_dir if file.is_relative_to(base_dir) else folder)


def _closure(files: Iterable[Path], folders: Iterable[Path], find: _Find) -> list[Path]:
    """`files` and everything that they import from `folders`, directly or indirectly. `find` is `_module_in`, cached.

    Packages are copied whole, which covers relative imports, but for hidden and large files.
    """
    found: dict[Path, None] = {}
    left = list(files)
    while left:
        file = left.pop()
        if file not in found:
            found[file] = None
            for module in imported_modules(file) if file.suffix == ".py" else ():
                left += _local_module(module, folders, find)
    return list(found)


def _local_module(module: str, folders: Iterable[Path], find: _Find) -> list[Path]:
    """The files of a module's top package in the first of `folders` that has it; empty if it is installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "nasflow":
        return []
    return next(filter(None, (find(folder, top) for folder in folders)), [])


def _module_in(folder: Path, top: str) -> list[Path]:
    """The files of a package or module in a folder; empty if it has none of that name."""
    if (folder / top).is_dir() and (package := sorted((folder / top).rglob("*.py"))):
        return [*package, *_beside(folder / top)]
    return [file] if (file := folder / f"{top}.py").is_file() else []
