"""The zoo trains in jobs like those of the training room's tests, and downloads nothing."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "training"))
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread: small nets are fastest this way, and the order of summation is the same on every machine."""
    torch.set_num_threads(1)
