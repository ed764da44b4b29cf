"""Processes forked after a flow has run end as before it, among them the workers of a DataLoader."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from multiprocessing import get_context
import torch
from torch.utils.data import DataLoader, TensorDataset
from nasflow.flows import search
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
for worker in (EventsWorker, APILogWorker):
    worker.instance()
{drain}
child = get_context("fork").Process(target=int)
child.start()
child.join()
loader = DataLoader(TensorDataset(torch.rand(40, 3)), 8, num_workers=2)
print(child.exitcode, *(len(list(loader)) for epoch in range(2)), flush=True)
os._exit(0)  # Prefect's workers would try to reach their server first
"""


@pytest.mark.parametrize("drain", ["", "EventsWorker.drain_all(timeout=0.5)"], ids=["running", "ended"])
def test_they_end_with_exit_code_zero(drain: str, tmp_path: Path) -> None:
    environment = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(drain=drain)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.stdout.split() == ["0", "5", "5"], done.stderr
