"""Collects the code shipped to hosts: the user's code folder, and nasflow itself.

A folder's content is identified by its hash, so that the same code is sent to a host once. Symbolic links are followed:
their targets, inside or outside of the folder, are shipped in their place, so that every path works as it does here.
Left out are broken links, links to a folder that contains them, empty folders, sockets, pipes and devices, the folders
of version control, Python environments (they would not work elsewhere), and everything that `LEFT_OUT` (caches,
results, what usually holds secrets) and `.nasflowignore` files name.
"""

import gzip
import io
import os
import re
import stat
import tarfile
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import nasflow
from nasflow.config.services.common import CodeConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ship.code_archive import file_digest, tree_digest
from nasflow.training_service.ship.ignore_rules import FILE, IgnoreRules

T = TypeVar("T")

LEFT_OUT = (
    *("__pycache__/", "*.py[co]", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/"),
    *(".ipynb_checkpoints/", ".tox/", ".nox/", "node_modules/"),
    *("nasflow-runs/", "nasflow.db*", "lightning_logs/", ".DS_Store"),
    *(".env*", "*.pem", "*.key"),
)
"""Left out unless a `.nasflowignore` takes it back with `!`: caches, results, and what usually holds secrets."""
_PRIVATE_KEY = re.compile(r"id_[^.]+")
"""Names of OpenSSH's private keys, left out like these; `id_map.py` and `id_rsa.pub` are none."""
_HISTORIES = {".git", ".hg", ".svn"}
_ENVIRONMENT_MARKS = {"pyvenv.cfg", "conda-meta"}
_MEGABYTE = 1e6
_LOOK_ON = 3.0  # seconds spent on finding the largest entries if there is too much
_OFFENDERS = 4


@dataclass(frozen=True)
class CodeFile:
    """A file to ship: its relative path on the host, with slashes, and its source path here. `size` is in bytes."""

    path: str
    source: Path
    size: int
    executable: bool


@dataclass(frozen=True)
class CodeArchive:
    """The files to ship from a folder.

    Attributes:
        folder: the source folder.
        files: sorted by path.
        digest: hash of paths, executable bits and bytes only (not of times or owners).
    """

    folder: Path
    files: tuple[CodeFile, ...]
    digest: str

    def write(self, target: BinaryIO) -> str:
        """Write a tar.gz, with the same bytes for the same digest, and return the digest of what was written.

        That is another than `digest` if files have changed meanwhile, as logs do.

        Raises:
            ServiceError: a file can no longer be read.
        """
        written = []
        with (
            gzip.GzipFile(fileobj=target, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in self.files:
                content = _reading(file.source, Path.read_bytes)
                member = tarfile.TarInfo(file.path)
                member.size, member.mode = len(content), 0o755 if file.executable else 0o644
                tar.addfile(member, io.BytesIO(content))
                written.append((file.path, file.executable, file_digest(io.BytesIO(content))))
        return tree_digest(written)


def collect(folder: Path, limits: CodeConfig, leave_out: Collection[Path] = ()) -> CodeArchive:
    """Collect the files to ship from a folder, by the rules in the module's docstring.

    Args:
        folder: the user's code.
        limits: the limits on files and size.
        leave_out: files and folders to leave out regardless of the rules, such as the study's own.

    Raises:
        ServiceError: there is too much, something can't be read, or a `.nasflowignore` is wrong.
    """
    rules = (IgnoreRules(LEFT_OUT),)
    files: list[CodeFile] = []
    size, deadline, complete = 0, float("inf"), True
    for file in _walk(folder, rules, leave_out):
        files.append(file)
        size += file.size
        if len(files) > limits.max_files or size > limits.max_megabytes * _MEGABYTE:
            deadline = min(deadline, time.monotonic() + _LOOK_ON)
        if time.monotonic() > deadline:
            complete = False
            break
    if deadline < float("inf"):
        raise ServiceError(_too_much(folder, files, limits, complete))
    return _archive(folder, files)


def nasflow_package() -> CodeArchive:
    """Return nasflow as imported here, without its flows, which hosts don't need. Its unpacked folder goes on sys.path.

    Raises:
        ServiceError: it was imported from something other than a folder.
    """
    folder = Path(nasflow.__file__).parent
    rules = (IgnoreRules(["*", "!*/", "!*.py", "!*.c", "__pycache__/", "/flows/"]),)
    files = [
        CodeFile(f"nasflow/{file.path}", file.source, file.size, file.executable) for file in _walk(folder, rules, ())
    ]
    return _archive(folder, files)


def _archive(folder: Path, files: list[CodeFile]) -> CodeArchive:
    files.sort(key=lambda file: file.path)
    digest = tree_digest((file.path, file.executable, _reading(file.source, _content_digest)) for file in files)
    return CodeArchive(folder, tuple(files), digest)


def _content_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file)


@dataclass(frozen=True)
class _Folder:
    """A folder to visit. `came_through`: real paths of the folders with links that led here, then its own."""

    path: str
    rules: tuple[IgnoreRules, ...]
    came_through: tuple[str, ...]


def _walk(top: Path, rules: tuple[IgnoreRules, ...], leave_out: Collection[Path]) -> Iterator[CodeFile]:
    """Yield the files breadth-first, so that a walk cut short has visited every outer folder."""
    without = {os.path.realpath(path) for path in leave_out}
    waiting = deque([_Folder("", rules, (os.path.realpath(top),))])
    while waiting:
        here = waiting.popleft()
        entries = _reading(Path(here.came_through[-1]), _entries)
        names = {entry.name for entry in entries}
        if here.path and names & _ENVIRONMENT_MARKS:
            continue
        inside = here.rules
        if FILE in names:
            inside = (*inside, IgnoreRules.read(Path(here.came_through[-1], FILE), here.path))
        for entry in (entry for entry in entries if entry.name not in _HISTORIES):
            path = f"{here.path}/{entry.name}" if here.path else entry.name
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            status = _status(entry)
            if status is None or real in without:
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            if _left_out(inside, path, is_folder):
                continue
            if is_folder:
                around = any(Path(place).is_relative_to(real) for place in here.came_through)
                before = here.came_through if entry.is_symlink() else here.came_through[:-1]
                if not around:
                    waiting.append(_Folder(path, inside, (*before, real)))
            elif stat.S_ISREG(status.st_mode):
                yield CodeFile(path, Path(real), status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry or of its link's target; None if that is missing."""
    try:
        return entry.stat()
    except OSError:
        return None


def _left_out(rules: tuple[IgnoreRules, ...], path: str, is_folder: bool) -> bool:
    """Whether an entry is left out, by the innermost folder that has a rule for it."""
    verdicts = (each.left_out(path, is_folder) for each in reversed(rules))
    is_key = not is_folder and _PRIVATE_KEY.fullmatch(path.rpartition("/")[2]) is not None
    return next((verdict for verdict in verdicts if verdict is not None), is_key)


def _reading(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except OSError as error:
        raise ServiceError(
            f"can't read {path}, which is to be shipped ({error.strerror}); make it readable or name it in {FILE}"
        ) from None


def _too_much(folder: Path, files: list[CodeFile], limits: CodeConfig, complete: bool) -> str:
    at_least = "" if complete else "at least "
    sizes = {file.path: file.size for file in files}
    if len(files) > limits.max_files:
        key, limit, found = "max_files", f"{limits.max_files:,}", f"{at_least}{len(files):,} files"
        largest = [f"{path} ({count:,})" for path, count in _largest(dict.fromkeys(sizes, 1))]
    else:
        key, limit, found = (
            "max_megabytes",
            f"{limits.max_megabytes:,g} MB",
            f"{at_least}{_megabytes(sum(sizes.values()))}",
        )
        largest = [f"{path} ({_megabytes(size)})" for path, size in _largest(sizes)]
    return (
        f"training_service.code: there are {found} to ship in {folder}, more than {limit}, most of it in "
        f"{', '.join(largest)}; name what hosts don't need in {folder / FILE}, or raise training_service.code.{key}"
    )


def _megabytes(size: float) -> str:
    return f"{size / _MEGABYTE:,.1f} MB"


def _largest(weights: dict[str, int]) -> list[tuple[str, int]]:
    """Return the heaviest entries of the innermost folder that holds at least 90% of the total."""
    inside = ""
    while True:
        entries: Counter[str] = Counter()
        for path, weight in weights.items():
            if path.startswith(inside):
                name, slash, _ = path.removeprefix(inside).partition("/")
                entries[f"{inside}{name}{slash}"] += weight
        largest = entries.most_common(_OFFENDERS)
        path, weight = largest[0]
        if not path.endswith("/") or weight < 0.9 * sum(weights.values()):
            return largest
        inside = path
