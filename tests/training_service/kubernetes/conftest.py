"""A Kubernetes of its own for these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, kubernetes_cluster

__all__ = ["kubernetes_cluster"]


@pytest.fixture(scope="module")
def server(kubernetes_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which this process and its children take by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", kubernetes_cluster.kubeconfig())
        yield kubernetes_cluster


@pytest.fixture
def root(server: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The root folder of a service, whose jobs end with the test."""
    from tests.training_service.kubernetes.service import make

    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    make(folder).cleanup()
