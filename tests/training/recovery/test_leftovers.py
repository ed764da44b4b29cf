"""A process that runs one job after the other, such as a notebook, keeps no member of an earlier one."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from nasflow.load_target import load_target
from nasflow.system import gc_control
from tests.training.jobs import evaluator, make_job, train

SPACE = """
import weakref
from torch import nn

made = weakref.WeakSet()


def build(pick):
    width = pick("width", [4, 8])
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
    made.add(model)
    return model


def alive():
    return len(made)
"""


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_members_of_earlier_jobs_are_freed(fuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_control, "_shared", threading.Event())  # as for a user; tests/conftest.py sets it
    (tmp_path / f"kept_{fuse}.py").write_text(SPACE)
    target = f"{tmp_path}/kept_{fuse}.py"
    for number in range(3):
        job = make_job(f"{target}:build", evaluator(), [{"width": 4}, {"width": 8}], fuse=fuse)
        train(job, tmp_path / str(number))
    gc.collect()
    assert load_target(f"{target}:alive", tmp_path)() == 0
