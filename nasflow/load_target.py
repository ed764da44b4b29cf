"""Import a user's object by its path: `package.module:Name`, or `file.py:Name` relative to the config."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import marshal
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from nasflow.clean_text import one_line
from nasflow.errors import ConfigError
from nasflow.system.gc_control import uncollected

_DEEPEST = 100  # dots in the name of a module; Python imports each package before it, by recursion
_FILES = threading.RLock()  # held while a file is imported: another thread waits for the whole module
_added: list[str] = []  # folders that are on sys.path for targets
_importing = threading.local()  # its `target` is what the thread imports at present
_imported: dict[str, str] = {}  # digests of the files of local modules, as this process imported them, by name
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
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

    A file that has changed since it was imported is imported again, as another module, but not what it imports (see
    `refuse_changed`). Its imports are looked for among installed packages first, then beside the file, then in
    `base_dir`.

    Raises:
        ConfigError: the target is malformed, or its file, module or name does not exist, or another target has imported
            another module by a name that its file imports.
    """
    place, _, name = target.rpartition(":")
    shown = one_line(target)
    if not place or not name:
        raise ConfigError(f"target '{shown}' should read 'package.module:Name' or 'file.py:Name'")
    file, base_dir = target_file(target, base_dir), base_dir.resolve()
    with uncollected(), _marked(shown):  # nearly all that an import makes stays
        module = _import_file(file, shown, base_dir) if file else _import_module(place, shown, base_dir)
    try:
        return getattr(module, name)
    except AttributeError:
        names = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:12])
        lacking = f"'{one_line(place)}' has no '{one_line(name)}'"
        raise ConfigError(f"target '{shown}': {lacking}; it has {names or 'nothing public'}") from None


def refuse_in_import(call: str) -> None:
    """Raise ConfigError, naming `call`, if this thread is importing a target. Jobs would make that call, too."""
    target = getattr(_importing, "target", None)
    if target is not None:
        raise ConfigError(
            f"target '{target}': its import calls {call}, and each job imports it; put that call under "
            'if __name__ == "__main__":'
        )


def refuse_changed(targets: Iterable[str], base_dir: Path) -> None:
    """Raise ConfigError if this process has imported an earlier version of a local module that `targets` need.

    Jobs would import the present one. The file of a `file.py:Name` target itself is imported again.
    """
    loaded: dict[str, list[tuple[str, Path]]] = {}
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__dict__", {}).get("__file__")  # without a module's __getattr__, which may import more
        if file is not None and _is_local_file(name, file):
            loaded.setdefault(_top(name), []).append((name, Path(file)))
    left = []
    for target in targets:
        place, file = target.rpartition(":")[0], target_file(target, base_dir)
        left += [place] if file is None else _imports(file, _file_digest(file))
    while left:
        for name, file in loaded.pop(_top(left.pop()), []):
            if _has_changed(name, file):
                raise ConfigError(
                    f"{one_line(str(file))} has changed since this process imported it, and jobs would import it as it "
                    "is now; restart the process (in a notebook: the kernel)"
                )
            left += _imports(file, _file_digest(file))


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


def _file_digest(file: Path) -> str:
    """Return the digest of a file's content; an empty one if it can't be read."""
    try:
        return hashlib.blake2b(file.read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def _imports(file: Path, digest: str) -> list[str]:
    """Return the modules that a file of this digest imports."""
    return list(imported_modules(file)) if digest else []


@contextmanager
def _marked(target: str) -> Iterator[None]:
    """Note that this thread imports `target` in a block."""
    outer = getattr(_importing, "target", None)
    _importing.target = target
    try:
        yield
    finally:
        _importing.target = outer


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_local(name: str, place: str) -> bool:
    """Whether a module, which is in the file or folder `place`, is the user's own rather than an installed one."""
    own = _top(name) not in sys.stdlib_module_names and _top(name) not in ("nasflow", "__main__")
    return own and not any(folder in place for folder in _INSTALLED)


def _is_local_file(name: str, file: str) -> bool:
    return file.endswith(".py") and _is_local(name, file)


def _has_changed(name: str, file: Path) -> bool:
    """Whether a local module was imported from another content of its file."""
    now = _file_digest(file)
    if name not in _imported:
        if _was_other(file):
            return True
        _imported[name] = now
    return _imported[name] != now


def _was_other(file: Path) -> bool:
    """Whether Python's cache has other code of a file, from an import since this process began."""
    import psutil  # noqa: PLC0415 - rarely needed: for what was imported before this module

    cached = Path(importlib.util.cache_from_source(str(file)))
    try:
        if sys.dont_write_bytecode or cached.stat().st_mtime < psutil.Process().create_time():
            return False
        code = marshal.loads(cached.read_bytes()[16:])  # noqa: S302  # Python itself would execute it
        return bool(code != compile(file.read_bytes(), str(file), "exec", dont_inherit=True))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


class _LocalImports:
    """Notes the content of each local module's file at its import. It finds nothing itself."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name in sys.modules or not _is_local(name, ""):
            return  # one that is reloaded may still be used elsewhere as it was
        folders = [str(folder) for folder in (sys.path if path is None else path)]
        spec = PathFinder.find_spec(name, [folder for folder in folders if _is_local(name, folder)], target)
        if spec is not None and spec.origin is not None and _is_local_file(name, spec.origin):
            _imported[name] = _file_digest(Path(spec.origin))


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


sys.meta_path.insert(0, _LocalImports)
sys.meta_path.append(_FileTargets)
