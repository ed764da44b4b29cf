"""Runs the parts of the kit within the given minutes, and writes `results.json` and `page.md` after each of them."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.commands import ROOT
from benchmarks.gpu.page import page
from benchmarks.gpu.parts import Part, parts
from benchmarks.merging.report import machine

_LEAST = 5.0  # seconds in which no part gets anywhere
_NO_TESTS = 5  # pytest's exit code where it has collected none


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kit. Return 1 if a part failed, 2 if there is no such device."""
    options = _options(arguments)
    console = Console(highlight=False)
    if options.device == "cuda" and not torch.cuda.is_available():
        console.print("error: torch sees no CUDA GPU here; --device cpu runs the whole kit, smaller, without one")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in parts(options.device) if part.name in (options.only or [part.name])]
    if not chosen:
        names = ", ".join(part.name for part in parts(options.device))
        console.print(f"error: --only: there is no such part; there are {names}")
        return 2
    deadline = time.monotonic() + 60 * options.minutes
    results: dict[str, Any] = {"device": options.device, "machine": machine(), "parts": {}}
    for part in chosen:
        left = deadline - time.monotonic()
        ended = _run(part, options.device, options.out, min(left, part.seconds)) if left > _LEAST else _left_out()
        results["parts"][part.name] = {"title": part.title, "command": " ".join(part.command[1:]), **ended}
        console.print(f"{part.name}: {ended['state']}, {ended['seconds']:.0f} s. {part.title}", markup=False)
        (options.out / "results.json").write_text(json.dumps(results, indent=1, default=str) + "\n")
        (options.out / "page.md").write_text(page(results))
    console.print(f"{options.out / 'page.md'}", markup=False)
    return int(any(part["state"] == "failed" for part in results["parts"].values()))


def _run(part: Part, device: str, out: Path, seconds: float) -> dict[str, Any]:
    """Run a part, its output to a file. Return its state, seconds and results."""
    log = out / f"{part.name}.log"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    with log.open("wb") as output:
        try:
            ended = subprocess.run(
                part.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"state": "out of time", "seconds": time.monotonic() - began, "results": None}
    said = log.read_text(errors="replace").splitlines()
    passed = ended.returncode == 0 or (part.name == "tests" and ended.returncode == _NO_TESTS)
    found = _results(said)
    if found is None and said:
        found = said[-1]
    return {"state": "passed" if passed else "failed", "seconds": time.monotonic() - began, "results": found}


def _left_out() -> dict[str, Any]:
    return {"state": "left out for want of time", "seconds": 0.0, "results": None}


def _results(lines: Sequence[str]) -> Any:
    """Return the last line that is JSON; None if there is none."""
    for line in reversed(lines):
        if line.startswith(("{", "[")):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
    return None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9, help="that all parts may take (default 9)")
    parser.add_argument("--out", type=Path, default=Path("gpu-kit"), help="a folder for what it writes")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: small, to show that all runs")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts, such as equality, steps, mlp-1024")
    return parser.parse_args(sys.argv[1:] if arguments is None else arguments)
