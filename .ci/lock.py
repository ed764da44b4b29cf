"""Writes .ci/locked/*.txt (`make lock`): the pins of constraints.txt that CI installs, with SHA-256 of their wheels.

Wheels differ by Python version, so pip is asked once for each (`pip install --dry-run --report`), from one interpreter
on Linux x86_64. A package that only some versions need gets a marker. torch has no hash: its builds for CPU and for
CUDA have one version and different files, from different indexes. It is installed by its version, after all others.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / ".ci" / "locked"
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]  # of the workflow
EXTRAS = ["dev", "docs", "zoo", "dlc"]  # of constraints.txt; a file for each, without what is in dev's
UNHASHED = "torch"
# glibc of the machines: a wheel for the newest of these is taken first, as pip does there.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]

HEAD = (
    "# Made by `make lock` from constraints.txt, for Linux x86_64 with CPython 3.11 to 3.14. torch: see .ci/lock.py.\n"
)


@dataclass(frozen=True)
class Wheel:
    """One wheel: its version, its SHA-256, and what it requires."""

    version: str
    sha256: str
    requires: list[str]


def pins() -> dict[str, str]:
    """Return the version of each package in constraints.txt, by canonical name."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}


def wheels(python: str) -> dict[str, Wheel]:
    """Return the wheel that the newest release of a Python version takes of each pinned package, by canonical name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        command += ["--report", str(report), "--target", folder, "--only-binary=:all:", f"--python-version={python}.99"]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        subprocess.run([*command, "--implementation=cp", "-r", ROOT / "constraints.txt"], check=True)
        found = json.loads(report.read_text())["install"]
    return {canonicalize_name(each["metadata"]["name"]): _wheel(each) for each in found}


def _wheel(installed: dict[str, Any]) -> Wheel:
    metadata, archive = installed["metadata"], installed["download_info"]["archive_info"]
    return Wheel(metadata["version"], archive["hashes"]["sha256"], metadata.get("requires_dist", []))


def nasflow() -> list[str]:
    """Return what nasflow requires, in the form of a wheel's metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requires: list[str] = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        requires += [f"{each}; extra == '{extra}'" for each in requirements]
    return requires


def closure(requires: dict[str, list[str]], extra: str, python_full_version: str) -> set[str]:
    """Return the canonical names of all that nasflow with an extra takes on Linux, itself and torch's own left out.

    Args:
        requires: the requirements of each package, by canonical name.

    Raises:
        ValueError: constraints.txt does not pin one of them.
    """
    version = {
        "python_version": ".".join(python_full_version.split(".")[:2]),
        "python_full_version": python_full_version,
    }
    environment = {**default_environment(), **version}
    found: set[tuple[str, str]] = set()
    todo = [("nasflow", ""), ("nasflow", extra)]
    while todo:
        name, of = todo.pop()
        if (name, of) in found:
            continue
        found.add((name, of))
        for requirement in map(Requirement, requires[name]):
            if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": of}):
                other = canonicalize_name(requirement.name)
                if other in requires:
                    todo += [(other, each) for each in ("", *requirement.extras)]
                elif name != UNHASHED:
                    raise ValueError(f"constraints.txt does not pin {other}, which {name} requires")
    return {name for name, _ in found} - {"nasflow", UNHASHED}


def needed(requires: dict[str, list[str]], extra: str, python: str) -> set[str]:
    """Return the same for all releases of a Python version."""
    return closure(requires, extra, f"{python}.0") | closure(requires, extra, f"{python}.99")


def line(name: str, by_python: dict[str, Wheel]) -> str:
    """Return the lock of one package: its version, the Python versions that need it, its hashes."""
    (version,) = {wheel.version for wheel in by_python.values()}
    marker = " or ".join(f'python_version == "{python}"' for python in by_python)
    parts = [f"{name}=={version}" + (f" ; {marker}" if len(by_python) < len(PYTHONS) else "")]
    hashes = sorted({wheel.sha256 for wheel in by_python.values()})
    return " \\\n    ".join([*parts, *(f"--hash=sha256:{each}" for each in hashes)]) + "\n"


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of each package in a lock file, by name."""
    found = {}
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        if entry and not entry.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
            parsed = Requirement(requirement)
            found[parsed.name] = (str(parsed.specifier).removeprefix("=="), hashes)
    return found


def main() -> None:
    """Write all files."""
    by_python = {python: wheels(python) for python in PYTHONS}

    def write(file: str, names: Iterable[tuple[str, str]]) -> None:
        of: dict[str, dict[str, Wheel]] = {}
        for name, python in names:
            of.setdefault(name, {})[python] = by_python[python][name]
        LOCKED.mkdir(exist_ok=True)
        (LOCKED / f"{file}.txt").write_text(HEAD + "".join(line(name, of[name]) for name in sorted(of)))

    write("pip", (("pip", python) for python in PYTHONS))
    for extra in EXTRAS:
        names = []
        for python in PYTHONS:
            requires = {name: wheel.requires for name, wheel in by_python[python].items()} | {"nasflow": nasflow()}
            more = needed(requires, extra, python) - (needed(requires, "dev", python) if extra != "dev" else set())
            names += [(name, python) for name in more]
        write(extra, names)


if __name__ == "__main__":
    main()
