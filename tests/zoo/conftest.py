"""What the tests of the zoo share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread: small nets are fastest this way, and the order of summation is the same on every machine."""
    torch.set_num_threads(1)
