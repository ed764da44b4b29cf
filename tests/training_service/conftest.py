import pytest
from slurm import slurm

__all__ = ["slurm"]

pytest.register_assert_rewrite("nasflow.testing")  # a failed assert there shows its values too
