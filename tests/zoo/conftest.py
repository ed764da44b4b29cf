"""What the tests of the zoo share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small nets are fastest so, and the order of summation is then the same on every machine."""
    torch.set_num_threads(1)
