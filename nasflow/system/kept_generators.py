"""The global random generators of this process, which belong to the user's script or notebook."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_lock = threading.RLock()


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of torch's, NumPy's and Python's global generators after this block.

    Blocks of several threads run one after another: each would restore what another has drawn meanwhile.
    """
    with _lock:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        numbers, python = np.random.get_state(), random.getstate()
        with torch.random.fork_rng(devices):
            try:
                yield
            finally:
                np.random.set_state(numbers)
                random.setstate(python)
