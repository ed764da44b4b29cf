"""What docs/kubernetes.md shows is so: its configs parse, and its Role has the rights that nasflow asks for."""

import re
from pathlib import Path

import pytest
import yaml

from nasflow.config.search import parse_config
from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)]
SEARCHES = [block for block in BLOCKS if "kind" not in block]
(ROLE,) = [block for block in BLOCKS if block.get("kind") == "Role"]


@pytest.mark.parametrize("block", SEARCHES, ids=lambda block: block["name"])
def test_its_configs_parse(block):
    assert isinstance(parse_config(block).training_service, KubernetesServiceConfig)


def test_its_role_has_the_rights_that_are_checked():
    service = pytest.importorskip("nasflow.training_service.cluster.kubernetes.pods")
    granted = {(verb, resource) for rule in ROLE["rules"] for verb in rule["verbs"] for resource in rule["resources"]}
    assert granted == {*service.rights("jobs"), *service.SECRET_RIGHTS, ("list", "events")}
    groups = {resource: rule["apiGroups"] for rule in ROLE["rules"] for resource in rule["resources"]}
    assert groups == {"jobs": ["batch"], "pods": [""], "secrets": [""], "events": [""]}


def test_labels_of_nasflow_are_refused():
    with pytest.raises(ValueError, match="'nasflow/root' is nasflow's own"):
        KubernetesServiceConfig(image="any", labels={"nasflow/root": "mine"})
