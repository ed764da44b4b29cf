"""A Slurm of its own for the tests of clusters."""

from tests.slurm import slurm

__all__ = ["slurm"]
