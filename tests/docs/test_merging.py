"""What docs/merging.md shows works as it stands there."""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.end_to_end import parse
from benchmarks.merging.command import make_parser
from nasflow.config.search import load_config
from nasflow.evaluator.check import check_search
from nasflow.flows.cli import main
from nasflow.flows.commands.plan.command import slot_environment
from nasflow.job.events import Epoch, Event, Planned
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.merge.kernels.registry import KERNELS
from nasflow.training.training_job import TrainingJob

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "merging.md").read_text()
BLOCK = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for line in TEXT.splitlines() if line.startswith("$ ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example's files; the kernel it registers is gone afterwards."""
    blocks = {block["name"]: block["text"] for block in BLOCK.finditer(TEXT)}
    assert blocks.keys() == {"standardize.py", "standardize.yaml"}
    for name, text in blocks.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = list(KERNELS)
    yield tmp_path
    KERNELS[:] = before


def run_plan(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """`nasflow plan`, in this process."""
    config = load_config(Path(str(arguments[0])))
    for name, value in slot_environment(config.training_service).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["nasflow", "plan", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_its_pass_and_its_kernel_are_planned(folder: Path, monkeypatch, capsys) -> None:
    config = folder / "standardize.yaml"
    config.write_text(config.read_text().replace("merge: {", "merge: {fuse: always, "))
    run_plan(monkeypatch, config, "--trials", 4)
    text = capsys.readouterr().out
    assert "computed once for trials 0-3: Standardize (opaque)" in text
    assert re.search(r"PReLU +\d+ → \d+ .* prelu ", text)


def train(folder: Path, fuse: str) -> list[Event]:
    config = load_config(folder / "standardize.yaml")
    space, rng = check_search(config), random.Random(0)
    members = [MemberSpec(trial=trial, architecture=space.sample(rng), seed=trial) for trial in range(4)]
    spec = JobSpec(
        job_id="job",
        study=config.name,
        space=config.space,
        evaluator=config.evaluator.model_copy(update={"precision": "64-true"}),
        data=config.evaluator.data,
        checkpoint=config.checkpoint,
        data_seed=0,
        base_dir=folder,
        members=members,
        merge=config.merge.model_copy(update={"fuse": fuse}),
    )
    events: list[Event] = []
    TrainingJob(spec, folder / fuse, events.append).run()
    return events


def test_its_pass_and_its_kernel_change_no_result(folder: Path) -> None:
    together, apart = (train(folder, fuse) for fuse in ("always", "never"))
    [planned] = [event for event in together if isinstance(event, Planned)]
    assert [sorted(unit.members) for unit in planned.units] == [[0, 1, 2, 3]]
    assert planned.units[0].kernels["prelu"] >= 1
    found, expected = (
        {(event.trial, event.epoch): event.metrics for event in events if isinstance(event, Epoch)}
        for events in (together, apart)
    )
    assert found.keys() == expected.keys()
    for key, metrics in expected.items():
        assert found[key] == pytest.approx(metrics, rel=1e-6)


def test_its_picture_is_drawn_by_its_command(tmp_path: Path, monkeypatch, capsys) -> None:
    """Times differ from machine to machine; what is drawn, and where, does not."""
    [command] = [command for command in COMMANDS if command.startswith("nasflow plan")]
    config, *options, picture = command.split()[2:]
    committed = ROOT / picture
    assert committed.stat().st_size < 60_000
    assert f"]({committed.relative_to(ROOT / 'docs')})" in TEXT
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_plan(monkeypatch, ROOT / config, *options, tmp_path / "plan.svg")
    assert "trials in one job" in capsys.readouterr().out

    def timeless(file: Path) -> str:
        return re.sub(r"\d+ µs|\d+\.\d\d ms", "", file.read_text())

    assert timeless(committed) == timeless(tmp_path / "plan.svg")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python -m ")])
def test_its_benchmarks_can_be_asked_so(command: str) -> None:
    _, _, module, *words = command.split()
    {"benchmarks.merging": make_parser("").parse_args, "benchmarks.end_to_end": parse}[module](words)


def test_its_links_lead_somewhere() -> None:
    headings = {
        path.name: {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                    for line in path.read_text().splitlines() if line.startswith("#")}
        for path in (ROOT / "docs").glob("*.md")
    }  # fmt: skip
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        assert not file or (ROOT / "docs" / file).is_file(), link
        assert not anchor or anchor in headings[file or "merging.md"], link


def test_its_help() -> None:
    """argparse formats some of it with `%`."""
    assert "95 %" in make_parser("").format_help()
