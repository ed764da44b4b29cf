"""The operators on the tests' Kubernetes."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster


@pytest.fixture(scope="module")
def operators(server: Cluster) -> Iterator[Cluster]:
    """The cluster, with the operators' custom resources and the operators."""
    from tests.kubernetes.crds import install
    from tests.kubernetes.operators import AdaptDL, FrameworkController, Trainer, TrainingOperator

    install(server.api)
    running = [
        each(server.api, server.folder / f"{each.kind}.err")
        for each in (TrainingOperator, Trainer, FrameworkController, AdaptDL)
    ]
    for operator in running:
        operator.start()
    yield server
    for operator in running:
        operator.stop()
