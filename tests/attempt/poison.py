"""Jobs and spaces with what poisons records: texts and numbers that stores and parsers refuse."""

import sys
from pathlib import Path

import torch
from torch import nn

from nasflow.job.spec import JobSpec
from nasflow.space.pick import Pick

TEXT = "no file caf\udce9.png\0 in the archive"


def raise_text(_: Path) -> int:
    """In place of the runner: end by an exception that nothing catches."""
    raise ValueError(TEXT)


def write_lines(path: Path) -> int:
    """In place of the runner: write the lines of the space's params as events, and print the poisonous text."""
    spec = JobSpec.model_validate_json(path.read_text())
    lines = spec.space.params["lines"]
    (path.parent / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    sys.stdout.write(TEXT.encode(errors="backslashreplace").decode() + "\n")
    return int(spec.space.params["code"])


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(TEXT)


def build(pick: Pick) -> nn.Module:
    fails = pick("fails", [False, True])
    return nn.Sequential(Failing() if fails else nn.Identity(), nn.Linear(13, 3))
