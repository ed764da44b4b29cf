"""The part of a GPU's memory that a process may use, where several jobs share the GPU."""

import os

GPU_SHARE = "NASFLOW_GPU_SHARE"
"""The variable with the part, from 0 to 1."""


def gpu_share() -> float:
    """Return this process's part; all of it if nothing else is said."""
    return float(os.environ.get(GPU_SHARE, "1"))
