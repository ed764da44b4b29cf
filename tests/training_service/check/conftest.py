"""A Slurm and a Kubernetes for the tests of checks."""

from tests.kubernetes.cluster import kubernetes_cluster
from tests.slurm import slurm

__all__ = ["kubernetes_cluster", "slurm"]
