"""What CI installs is pinned: packages by version and hash, actions by commit; `.ci/locked/` fits constraints.txt."""

import importlib.util
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module  # a dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def locked(lock: ModuleType) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """Version and hashes of each package, by file."""
    return {path.stem: lock.locked(path.read_text()) for path in lock.LOCKED.glob("*.txt")}


def test_every_pin_has_its_hashes_and_nothing_else_has(lock, locked):
    assert set(locked) == {"pip", *lock.EXTRAS}
    versions: dict[str, str] = {}
    for packages in locked.values():
        for name, (version, hashes) in packages.items():
            assert versions.setdefault(name, version) == version
            assert hashes and all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes), name
    assert versions | {lock.UNHASHED: lock.pins()[lock.UNHASHED]} == lock.pins(), "make lock"


def test_all_that_the_development_tools_take_here_is_locked(lock, locked):
    def installed(name: str) -> list[str]:
        try:
            return requires(name) or []
        except PackageNotFoundError:
            return []  # of an extra that is not installed, or of another platform

    known = {name: installed(name) for name in lock.pins()} | {"nasflow": lock.nasflow()}
    assert lock.closure(known, "dev", platform.python_version()) <= set(locked["dev"])


def test_a_requirement_that_is_not_pinned_is_named(lock):
    with pytest.raises(ValueError, match=r"constraints\.txt does not pin other, which one requires"):
        lock.closure({"nasflow": ["one; extra == 'dev'"], "one": ["other>2"]}, "dev", "3.12.0")


def test_wheels_of_several_versions_of_python_are_written_and_read(lock):
    wheels = {"3.11": lock.Wheel("1.0", "a" * 64, []), "3.12": lock.Wheel("1.0", "b" * 64, [])}
    text = lock.line("one", wheels)
    assert 'python_version == "3.11" or python_version == "3.12"' in text
    assert lock.locked(text) == {"one": ("1.0", ["a" * 64, "b" * 64])}


def test_the_lock_is_small_and_names_no_index(lock):
    files = sorted(lock.LOCKED.iterdir())
    assert sum(file.stat().st_size for file in files) < 200_000
    assert not any(re.search("https?:|index", file.read_text()) for file in files)


def test_ci_installs_with_hashes_on_the_versions_that_are_locked(lock):
    assert "export LOCKED=1" in (ROOT / ".ci" / "run").read_text()
    (workflow,) = [text for path in WORKFLOWS if "bash .ci/run" in (text := path.read_text())]
    assert yaml.safe_load(workflow)["jobs"]["gate"]["strategy"]["matrix"]["python"] == lock.PYTHONS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_their_commit(path):
    used = re.findall(r"uses: *(\S+)", path.read_text())
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in used), used
