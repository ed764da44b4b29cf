"""The order of the tests' files: long ones of the last folders start first, so that none runs alone at the end."""

from pathlib import Path

import pytest

FIRST = (
    "tests/training_service/kubernetes/test_endings.py",  # builds servers, which takes until the next of them begins
    "tests/training/unit/test_recipe_pairs.py",
    "tests/faults/test_faults.py",
    "tests/training_service/cluster/test_object_store_faults.py",
    "tests/flows/test_programs.py",
    "tests/flows/services/test_slurm_nodes.py",
    "tests/zoo/test_zoo.py",
    "tests/trust/test_trust.py",
    "tests/soak/test_soak.py",
    "tests/sabotage/test_sabotage.py",
    "tests/training_service/kubernetes/operators/test_contract.py",
    "tests/training_service/kubernetes/operators/test_several_pods.py",
    "tests/training_service/kubernetes/test_service.py",
    "tests/training_service/cluster/test_slurm.py",
)
"""From the root of the repository."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of these files first; the order of the others stays."""
    places = {config.rootpath / file: place for place, file in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(Path(item.path), len(places)))
