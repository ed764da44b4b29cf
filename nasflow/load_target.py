"""Import a user's object by its path: `package.module:Name`, or `file.py:Name` relative to the config."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from nasflow.clean_text import one_line
from nasflow.errors import ConfigError
from nasflow.system.gc_control import uncollected

_DEEPEST = 100  # dots in the name of a module; Python imports each package before it, by recursion
_FILES = threading.RLock()  # held while a file is imported: another thread waits for the whole module
_added: list[str] = []  # folders that are on sys.path for targets
_MODULE = "nasflow_target_{stem}_{place}_{content}"  # the name of a file's module, with digests of its path and content


def import_path_without_targets() -> list[str]:
    """Return `sys.path` without the folders that are on it for targets.

    Another process that loads a target puts its folder last, as this one did. In PYTHONPATH it would come before
    installed packages, and a user's `yaml.py` would hide the library.
    """
    return [entry for entry in sys.path if entry not in _added]


def target_file(target: str, base_dir: Path) -> Path | None:
    """Return the absolute path of the file of a `file.py:Name` target, or None for a `package.module:Name` one."""
    place, _, _ = target.rpartition(":")
    return (base_dir / place).resolve() if place.endswith(".py") else None


def load_target(target: str, base_dir: Path) -> Any:
    """Return the object that `target` names.

    A file that has changed since it was imported is imported again, as another module. Its imports are looked for among
    installed packages first, then beside the file, then in `base_dir`.

    Raises:
        ConfigError: the target is malformed, or its file, module or name does not exist, or another target has imported
            another module by a name that its file imports.
    """
    place, _, name = target.rpartition(":")
    shown = one_line(target)
    if not place or not name:
        raise ConfigError(f"target '{shown}' should read 'package.module:Name' or 'file.py:Name'")
    file, base_dir = target_file(target, base_dir), base_dir.resolve()
    with uncollected():  # nearly all that an import makes stays
        module = _import_file(file, shown, base_dir) if file else _import_module(place, shown, base_dir)
    try:
        return getattr(module, name)
    except AttributeError:
        names = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:12])
        lacking = f"'{one_line(place)}' has no '{one_line(name)}'"
        raise ConfigError(f"target '{shown}': {lacking}; it has {names or 'nothing public'}") from None


def check_params(key: str, target: str, function: Callable[..., Any], /, *args: Any, **params: Any) -> None:
    """Raise ConfigError, naming the config's `key`, unless `target`'s `function` accepts these arguments."""
    try:
        inspect.signature(function).bind(*args, **params)
    except TypeError as error:
        raise ConfigError(f"{key}: {target} does not take these params: {error}") from None
    except ValueError:
        return  # written in C, it may have no signature; its call will tell


def imported_modules(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports by absolute name, anywhere in it; none if it is no Python."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def _import_module(place: str, target: str, base_dir: Path) -> ModuleType:
    if place.count(".") > _DEEPEST:
        raise ConfigError(f"target '{target}': the name of a module has at most {_DEEPEST} dots")
    _make_importable(base_dir)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise  # the module is there; something it imports is missing
        raise ConfigError(
            f"target '{target}': there is no module '{one_line(error.name)}' (looked beside the config too)"
        ) from None


def _import_file(file: Path, target: str, base_dir: Path) -> ModuleType:
    try:
        content = file.read_bytes() if file.is_file() else None
    except OSError as error:
        raise ConfigError(f"target '{target}': its file can't be read: {error.strerror}") from None
    if content is None:
        raise ConfigError(f"target '{target}': there is no file {one_line(str(file))}")
    with _FILES:
        return _import_content(content, file, target, base_dir)


def _import_content(content: bytes, file: Path, target: str, base_dir: Path) -> ModuleType:
    name = _MODULE.format(stem=file.stem, place=_digest(str(file).encode()), content=_digest(content))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"target '{target}': {file} can't be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _make_importable(base_dir)
    _make_importable(file.parent)
    try:
        exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))  # noqa: S102  # as digested
        _refuse_others(file, target, base_dir)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    """Let modules be imported from a folder: after installed packages, before other folders of targets."""
    entry = str(folder)
    if entry in sys.path:
        if entry not in _added:
            return
        sys.path.remove(entry)
    if entry not in _added:
        _added.append(entry)
    first = next((place for place, other in enumerate(sys.path) if other in _added), len(sys.path))
    sys.path.insert(first, entry)


def _refuse_others(file: Path, target: str, base_dir: Path) -> None:
    """Raise ConfigError if `file` imports, directly or not, a module that is another of that name in this process.

    It may be the one beside another target, which was loaded first; a job may load them in another order.
    """
    left, seen = [file], {file}
    while left:
        for name in {module.partition(".")[0] for module in imported_modules(left.pop())}:
            imported = getattr(sys.modules.get(name), "__file__", None)
            wanted = _local_file(name, (file.parent, base_dir))
            if imported is None or wanted is None or wanted in seen:
                continue
            other = Path(imported).resolve()
            if other == wanted:
                seen.add(wanted)
                left.append(wanted)
            elif {str(other.parent), str(other.parent.parent)} & {*_added, str(base_dir)}:
                raise ConfigError(
                    f"target '{target}': '{name}' is {one_line(str(other))} in this process already, so it can't be "
                    f"{one_line(str(wanted))}; rename one of them, or load the target in another process"
                )


def _local_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a module, or of a package, in the first of `folders` that has it."""
    places = (place for folder in folders for place in (folder / name / "__init__.py", folder / f"{name}.py"))
    return next((place.resolve() for place in places if place.is_file()), None)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=4).hexdigest()


class _FileTargets:
    """Finds the module of a file again in a process that a loader's worker began in, such as a spawned one.

    Objects of such a module are pickled with its name. The folder of its file is on `sys.path`, which `multiprocessing`
    passes on.
    """

    _NAME = re.compile(_MODULE.format(stem="(?P<stem>.+)", place="(?P<place>[0-9a-f]{8})", content="[0-9a-f]{8}"))

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if path is not None or not (match := cls._NAME.fullmatch(name)):
            return None
        for folder in sys.path:
            file = (Path(folder) / f"{match['stem']}.py").resolve()
            if _digest(str(file).encode()) == match["place"] and file.is_file():
                return importlib.util.spec_from_file_location(name, file)
        return None


sys.meta_path.append(_FileTargets)
