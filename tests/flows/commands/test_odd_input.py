"""Names, numbers and files that no one means to give: one sentence and exit code 2, and nothing half done."""

import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from nasflow.config.search import SearchConfig, parse_config
from nasflow.errors import UserError
from nasflow.flows.cli import main
from nasflow.flows.commands.deploy.schedules import When
from nasflow.flows.commands.report.command import write_report
from nasflow.flows.commands.run.command import run_search
from nasflow.study.study import Study
from tests.flows.searches import ONE_TRIAL

Run = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchConfig:
    """Of a search in this folder."""
    monkeypatch.chdir(tmp_path)
    return parse_config({**ONE_TRIAL, "name": "odd", "base_dir": tmp_path, "work_dir": tmp_path / "runs"})


@pytest.fixture
def study(config: SearchConfig) -> Iterator[Study]:
    """That search's, without trials."""
    opened = Study.open(config)
    yield opened
    opened.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, and return what it prints, its errors last."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["nasflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed
        return printed.out + printed.err

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["recover", "--grace", "1e15"],
        ["recover", "--grace", "inf"],
        ["recover", "--grace", "nan"],
        ["purge", "*", "--older-than", "nan"],
        ["purge", "*", "--older-than", "1e6"],
        ["run", "search.yaml", "--keep-server", "nan"],
        ["services", "check", "search.yaml", "--seconds", "nan"],
    ],
    ids=" ".join,
)
def test_a_number_that_is_out_of_range(run: Run, arguments: list[str]) -> None:
    said = run(*arguments, code=2)
    assert "Invalid value for" in said and arguments[-2] in said


@pytest.mark.parametrize("interval", ["9999999999d", "9" * 400, "100001d"])
def test_an_interval_that_is_too_long(interval: str) -> None:
    with pytest.raises(UserError, match=f"--interval '{interval}' can't be used: give 100000d at most"):
        When(interval=interval).schedule()


@pytest.mark.parametrize(
    ("flow", "given"), [("retention", {"older_than_days": 1e9}), ("recover", {"grace_seconds": 1e15})]
)
def test_a_number_that_is_out_of_range_in_a_flow(flow: str, given: dict[str, float]) -> None:
    from nasflow import flows

    values: dict[str, Any] = {"studies": "*"} if flow == "retention" else {}
    called = getattr(flows, flow)
    called.validate_parameters({**values, **dict.fromkeys(given, 1.0)})
    with pytest.raises(Exception, match="less than or equal to"):
        called.validate_parameters({**values, **given})


def test_a_name_that_is_not_text(study: Study, run: Run) -> None:
    assert run("show", "od\udcff", code=2) == "error: there is no study 'od\\udcff' in the store; it has odd\n"


def test_a_path_is_printed_as_it_is(run: Run, tmp_path: Path) -> None:
    """And the size of a space that has more architectures than a float can hold."""
    (tmp_path / "huge.py").write_text(
        "from torch import nn\n\ndef build(pick):\n    for number in range(40):\n"
        "        pick.int(f'x{number}', 1, 10**9)\n    return nn.Linear(64, 10)\n"
    )
    file = tmp_path / "[red] :fire: [" / "search.yaml"
    file.parent.mkdir()
    values = {**ONE_TRIAL, "name": "huge", "space": {"target": "huge.py:build"}, "base_dir": str(tmp_path)}
    file.write_text(yaml.safe_dump(values))
    assert run("validate", file) == f"{file} is valid: about 1.00e+360 architectures, strategy random.\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"merge": {"passes": ["nowhere:A"]}}, "there is no module 'nowhere'"),
        ({"merge": {"passes": ["math:pi"]}}, "merge.passes: math:pi is not callable"),
        ({"strategy": {"kind": "tpe", "params": {"startup": 3}}}, "strategy.params.startup: tpe has no such param"),
        ({"strategy": {"kind": "custom", "target": "math:pi"}}, "strategy.target: 'math:pi' is no subclass"),
        (
            {"strategy": {"kind": "custom", "target": "spaces.py:Waits"}, "budget": {"rounds_ahead": 1}},
            "budget.rounds_ahead: Waits needs the results of each round",
        ),
        ({"training_service": {"kind": "custom", "target": "math:pi"}}, "training_service.target: 'math:pi' is not"),
        (
            {"training_service": [{"kind": "local"}, {"kind": "custom", "target": "spaces.py:Elsewhere"}]},
            "training_service.1: one of several services has its jobs' files on this machine",
        ),
    ],
)
def test_what_a_search_would_refuse_is_not_valid(run: Run, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "spaces.py").write_text(
        "from nasflow.strategy.base import Strategy\nfrom tests.flows.models.spaces import mixed\n\n"
        "class Waits(Strategy):\n    def __init__(self, space, objectives, seed): pass\n"
        "    def ask(self, count): pass\n    def tell(self, trials): pass\n\n"
        "from nasflow.training_service.base import TrainingService\n"
        "class Elsewhere(TrainingService):\n    def __init__(self, root): pass\n"
        "    validate = prepare = submit = status = events = log_tail = fetch = None\n"
        "    cancel = list = slots = cleanup = None\n"
    )
    (tmp_path / "search.yaml").write_text(yaml.safe_dump({**ONE_TRIAL, "name": "wrong", **changes}))
    assert said in run("validate", "search.yaml", code=2)
    assert {file.name for file in tmp_path.iterdir()} - {"__pycache__"} == {"spaces.py", "search.yaml"}


def test_the_store_takes_no_tables_of_optuna(study: Study, run: Run, tmp_path: Path) -> None:
    said = run("export", "odd", "--optuna", f"sqlite:///{tmp_path}/nasflow.db", code=2)
    assert f"--optuna: sqlite:///{tmp_path}/nasflow.db holds studies of nasflow: name another database" in said
    connection = sqlite3.connect(tmp_path / "nasflow.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert "nasflow_schema" in names and "study_directions" not in names


def test_a_database_of_another_version_of_optuna(study: Study, run: Run, tmp_path: Path) -> None:
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/optuna.db").engine.dispose()
    connection = sqlite3.connect(tmp_path / "optuna.db")
    connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    connection.commit()
    connection.close()
    said = run("export", "odd", "--optuna", "sqlite:///optuna.db", code=2)
    assert said.startswith("error: --optuna: sqlite:///optuna.db has the tables of another version of Optuna")
    assert said.count("\n") == 1


def test_a_report_that_can_not_be_written_leaves_the_earlier_one(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("earlier")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, hard))
    try:
        with pytest.raises(UserError, match=r"report\.html can't be written: File too large"):
            write_report(study, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.read_text() == "earlier"
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")]


def test_a_report_goes_where_a_link_leads(study: Study, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("earlier")
    (tmp_path / "link.html").symlink_to("report.html")
    write_report(study, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("place", "words"),
    [("mine", "exists and is not an export of nasflow"), ("mine/notes.txt/best", "because it is not a folder")],
)
def test_a_folder_that_takes_no_export_is_refused_before_the_search(
    config: SearchConfig, tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=words):
        run_search(config, Path(place), take_over=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
