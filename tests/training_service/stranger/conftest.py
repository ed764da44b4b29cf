"""A Kubernetes for these tests."""

from tests.kubernetes.cluster import kubernetes_cluster
from tests.training_service.kubernetes.conftest import root, server

__all__ = ["kubernetes_cluster", "root", "server"]
