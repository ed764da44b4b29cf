"""Fixtures of native kernels."""

from collections.abc import Iterator

import pytest
import torch

from nasflow.native.library import library


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in a job on one core, where native kernels run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if library() is None:
        pytest.skip("needs a C compiler")
    yield
    torch.set_num_threads(threads)
