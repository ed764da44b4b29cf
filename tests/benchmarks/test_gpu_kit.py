"""The kit for a GPU, on a CPU: all of it runs, and it says what it found."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import command, equality
from benchmarks.gpu.command import main
from benchmarks.gpu.parts import Part, parts


def results(out: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((out / "results.json").read_text())["parts"]
    return found


def programs(**codes: str) -> list[Part]:
    """Parts that run Python code."""
    return [Part(name, "", 60, (sys.executable, "-c", code)) for name, code in codes.items()]


def test_without_a_gpu_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_part_that_does_not_exist(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--only", "w7", "--out", str(tmp_path)]) == 2


def test_results_are_the_last_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"good": 'print("[1]\\n{\\"a\\": 2}\\n{no json")', "bad": 'print("why"); raise SystemExit(3)'}
    monkeypatch.setattr(command, "parts", lambda device: programs(**codes))
    assert main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    found = results(tmp_path)
    assert {name: (part["state"], part["results"]) for name, part in found.items()} == {
        "good": ("passed", {"a": 2}),
        "bad": ("failed", "why"),
    }
    assert '"a": 2' in (tmp_path / "page.md").read_text()


def test_a_part_out_of_time_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = programs(slow="import time; time.sleep(60)", quick="print('[]')")
    monkeypatch.setattr(command, "parts", lambda device: [replace(slow, seconds=0.2), quick])
    assert main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    assert [part["state"] for part in results(tmp_path).values()] == ["out of time", "passed"]
    assert main(["--device", "cpu", "--minutes", "0.01", "--out", str(tmp_path)]) == 0
    assert {part["state"] for part in results(tmp_path).values()} == {"left out for want of time"}


def test_a_difference_is_seen() -> None:
    one = torch.tensor([1.0, 200.0], dtype=torch.float64)
    assert equality._difference(one, one) == 0
    assert equality._difference(one, one + torch.tensor([0.0, 2e-7])) == pytest.approx(1e-9, rel=1e-3)
    assert equality._difference(one, one[:1]) == float("inf")


@pytest.mark.long
def test_it_runs_without_a_gpu(tmp_path: Path) -> None:
    assert (
        main(["--device", "cpu", "--minutes", "4", "--only", "tests", "equality", "steps", "--out", str(tmp_path)]) == 0
    )
    found = results(tmp_path)
    assert {part["state"] for part in found.values()} == {"passed"}
    same, (step,) = found["equality"]["results"], found["steps"]["results"]  # type: ignore[misc]
    assert same["fused"] == same["members"] == 3 and not same["differ"]  # type: ignore[index]
    assert step["members"] == 4 and step["a_step"]["operations"] > 4


def test_names_of_parts_are_file_names() -> None:
    for device in ("cuda", "cpu"):
        assert all(part.name.replace("-", "").isalnum() for part in parts(device))
