"""The house stands as DESIGN says: its floors, what each import may load, file sizes, what is committed."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import BEGIN, END, PAGE, circle, drawing, imports, rooms
from tests.order import FIRST

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("nasflow", "flows", "benchmarks", "tests")
MAX_LINES = 400

# What the command line loads before it knows what is asked of it.
LIGHT = (
    "nasflow.config",
    "nasflow.trial",
    "nasflow.errors",
    "nasflow.space.architecture",
    "nasflow.job.spec",
    "nasflow.job.events",
    "nasflow.training_service.base",
    "nasflow.study.study",
    "nasflow.report.leaderboard",
    "nasflow.flows.cli",
    "nasflow.flows.server.own_server",
)
# Paths on one person's machine. A clone knows none of them.
MACHINE_PATH = re.compile(r"(?<![\w.~}/-])/(?:work|root|home|Users)/[\w.-]|/tmp/dev\b")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository's root."""
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120
    )


def python_files(*folders: str) -> Iterator[Path]:
    """Every Python file below the folders."""
    return (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, `from a import b` as both `a` and `a.b`."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return found


def loaded_by(*modules: str) -> set[str]:
    """The top-level modules, and nasflow's rooms, that a fresh interpreter holds after these imports."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    return {name.split(".")[0] for name in names} | {".".join(name.split(".")[:2]) for name in names}


@pytest.mark.parametrize("forbidden", ["prefect", "nasflow.flows", "flows"])
def test_nasflow_never_imports(forbidden: str) -> None:
    files = list(python_files("nasflow"))
    guilty = [
        str(path.relative_to(ROOT))
        for path in files
        if any(name == forbidden or name.startswith(f"{forbidden}.") for name in imported(path))
    ]
    assert len(files) > 40
    assert guilty == []


def test_flows_imports_itself_relatively() -> None:
    """Its folder is not called what it is imported as; only relative imports mean the same under both names."""
    by_name = re.compile(r"\s*(?:from|import) (?:nasflow\.)?flows\b")
    guilty = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in python_files("flows")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Import | ast.ImportFrom) and by_name.match(ast.unparse(node))
    ]
    assert guilty == []


def test_every_room_stands_on_its_floor() -> None:
    done = run(Path(sys.executable).with_name("lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_nothing_imports_in_a_circle() -> None:
    """Neither files nor rooms, at any depth, imports for types included."""
    modules = imports("nasflow", "flows", "benchmarks", "tests")
    assert len(modules) > 300
    assert circle(modules) == []
    packages = {module.rpartition(".")[0] for module in modules if "." in module}
    assert {package: found for package in packages if (found := circle(rooms(modules, package)))} == {}


def test_the_drawing_is_of_this_house() -> None:
    drawn = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert drawn == drawing(imports("nasflow", "flows")), "make house draws it anew"


def test_the_runner_loads_no_prefect() -> None:
    loaded = loaded_by("nasflow.training.runner")
    assert "torch" in loaded
    assert loaded.isdisjoint({"prefect", "nasflow.flows", "nasflow.study", "nasflow.testing", "sqlalchemy"})


def test_the_command_line_can_start_without_torch() -> None:
    assert loaded_by(*LIGHT).isdisjoint({"torch", "pytorch_lightning", "optuna", "sklearn", "prefect"})


def test_a_search_begins_without_lightning_and_without_prefects_server() -> None:
    loaded = loaded_by("nasflow.flows.search_flow", "nasflow.flows.commands.run.command", "nasflow.report.leaderboard")
    assert {"torch", "prefect"} <= loaded
    assert loaded.isdisjoint({"pytorch_lightning", "torch._dynamo", "prefect.server", "sklearn", "optuna"})


def test_every_package_is_shipped() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in python_files("nasflow", "flows") if path.name == "__init__.py"}
    names = {".".join(("nasflow", *folder.parts) if folder.parts[0] == "flows" else folder.parts) for folder in folders}
    assert set(settings["packages"]) == names


def test_every_data_file_is_shipped() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {package: ROOT.joinpath(*package.split(".")) for package in settings["package-data"]}
    shipped = {
        path
        for package, folder in folders.items()
        for what in settings["package-data"][package]
        for path in folder.glob(what)
    }
    assert shipped == {path for path in (ROOT / "nasflow").rglob("*.*") if path.suffix not in (".py", ".pyc")}


def test_files_that_start_first_are_there() -> None:
    assert [file for file in FIRST if not (ROOT / file).is_file()] == []


def test_no_file_is_two_rooms() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files(*FOLDERS)}
    assert {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_nothing_committed_names_a_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listed = run("git", "-c", "safe.directory=*", "ls-files", "-z")
    assert listed.returncode == 0, listed.stderr
    files = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    guilty = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if path != Path(__file__) and MACHINE_PATH.search(line)
    ]
    assert files
    assert guilty == []


@pytest.mark.parametrize(
    ("promised", "outcomes"),
    [
        ("", {"skipped": "6", "xfailed": "1"}),
        ("1", {"skipped": "3", "xfailed": "1", "failed": "1", "errors": "2"}),
    ],
)
def test_a_skip_fails_where_everything_is_promised(tmp_path: Path, promised: str, outcomes: dict[str, str]) -> None:
    """By mark, while it runs, or of a whole module: each once for want of a GPU, which nothing promises."""
    for name, reason in (("database", "no database"), ("gpu", "needs a GPU with 8 GiB")):
        (tmp_path / f"test_{name}.py").write_text(
            f"import pytest\n"
            f"@pytest.mark.skip(reason={reason!r})\ndef test_mark(): pass\n"
            f"def test_call(): pytest.skip({reason!r})\n"
        )
        (tmp_path / f"test_{name}_module.py").write_text(
            f"import pytest\npytest.skip({reason!r}, allow_module_level=True)\n"
        )
    (tmp_path / "test_xfail.py").write_text("import pytest\n@pytest.mark.xfail\ndef test_bad(): assert False\n")
    plugins = ("-p", "tests.skips", "-p", "no:cacheprovider")
    done = run(
        *(sys.executable, "-m", "pytest", "-q", *plugins, "-c", os.devnull),
        "--continue-on-collection-errors",
        f"--rootdir={tmp_path}",
        tmp_path,
        PYTHONPATH=str(ROOT),
        NASFLOW_NO_SKIPS=promised,
    )
    closing = done.stdout.splitlines()[-1]
    assert {outcome: count for count, outcome in re.findall(r"(\d+) ([a-z]+)", closing)} == outcomes, done.stdout
    assert (done.returncode != 0) == bool(promised)
