"""Imports of `scipy.signal` take no time until something of it is used, and then all of it is there."""

import subprocess
import sys

import pytest

USES = {
    "from": "from scipy.signal import convolve\nassert list(convolve([1, 2], [1, 1])) == [1, 3, 2]",
    "attribute": "import scipy.signal\nassert scipy.signal.convolve([1], [3])[0] == 3",
    "submodule": "import scipy.signal.windows as windows\nassert len(windows.hamming(5)) == 5",
    "from submodule": "from scipy.signal.windows import hann\nassert len(hann(4)) == 4",
    "lazily": "import scipy\nassert len(scipy.signal.windows.hann(4)) == 4",
    "before": "held = sys.modules['scipy.signal']\nimport scipy.signal.windows\nassert held.convolve([1], [2])[0] == 2",
    "torchmetrics' name": "import scipy.signal\nassert len(scipy.signal.hamming(3)) == 3",
    "reload": "import importlib, scipy.signal\nimportlib.reload(scipy.signal.windows)",
    "all names": "import scipy.signal\nassert 'convolve' in dir(__import__('importlib').import_module('scipy.signal'))",
    "star": "from scipy.signal import *\nassert convolve([1], [2])[0] == 2",
    "spec": """
import importlib.util
spec = importlib.util.find_spec("scipy.signal")
assert "scipy.signal._signaltools" not in sys.modules
assert spec.origin.endswith("__init__.py") and spec.submodule_search_locations, spec
import scipy.signal
assert scipy.signal.convolve([1], [3])[0] == 3
""",
    "missing": """
try:
    from scipy.signal import nothing
except ImportError as error:
    assert "nothing" in str(error)
""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
import scipy.signal
with ThreadPoolExecutor(8) as pool:
    assert {len(found) for found in pool.map(lambda n: scipy.signal.windows.hann(5), range(8))} == {5}
""",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What each use printed, in a process forked from one that has imported what jobs need."""
    program = """
import os, sys, traceback
import nasflow.training.runner, torchmetrics
assert not {"scipy.signal._signaltools", "scipy.stats", "scipy.optimize"} & sys.modules.keys(), "it was imported"
for name, use in USES.items():
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            exec(use, {"sys": sys})
            assert "scipy.signal._signaltools" in sys.modules
            print(name, "well", sep=":")
        except BaseException as error:
            print(name, repr(error), sep=":")
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
    run = subprocess.run(
        [sys.executable, "-c", f"USES = {USES!r}\n{program}"], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    return dict(line.split(":", 1) for line in run.stdout.splitlines())


@pytest.mark.parametrize("use", USES)
def test_all_of_it_is_found(use: str, outcomes: dict[str, str]) -> None:
    assert outcomes[use] == "well"


def test_it_is_put_off_where_jobs_are_forked_from() -> None:
    program = """
import sys
from pathlib import Path
from nasflow.training_service.local.service import PRELOAD, RUNNER
from nasflow.training_service.local.worker import warm_up
warm_up(list(PRELOAD), RUNNER, Path())
assert "pytorch_lightning" in sys.modules
assert "scipy.signal._signaltools" not in sys.modules, "it was imported"
"""
    subprocess.run([sys.executable, "-c", program], timeout=100, check=True)
