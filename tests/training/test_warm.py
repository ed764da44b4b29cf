"""What a worker makes before its first job changes nothing for the jobs but the time that they take."""

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import json, pathlib, random, threading
import numpy, torch
import nasflow.training.training_job
from nasflow.training.lightning_loop import make_trainer

def state():
    return [torch.get_rng_state().tolist(), str(numpy.random.get_state()), str(random.getstate()),
            torch.cuda.is_initialized(), torch.is_grad_enabled(), threading.active_count()]

before = state()
import nasflow.training.warm
is_same = state() == before and not list(pathlib.Path.home().rglob("native"))  # for torch has two threads
callbacks = [[type(one).__name__ for one in make_trainer("32-true").callbacks] for _ in range(2)]
print(json.dumps([is_same, callbacks]))
"""
_PACKAGE = """
from pytorch_lightning import Callback

class Declared(Callback):
    pass

def make():
    return Declared()
"""


def test_state_and_declared_callbacks(tmp_path: Path) -> None:
    (tmp_path / "declaring.py").write_text(_PACKAGE)
    about = tmp_path / "declaring-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: declaring\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pytorch_lightning.callbacks_factory]\nown = declaring:make\n")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    is_same, callbacks = json.loads(done.stdout.splitlines()[-1])
    assert is_same
    assert [names.count("Declared") for names in callbacks] == [1, 1]
