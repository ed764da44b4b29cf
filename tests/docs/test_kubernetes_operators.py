"""What docs/kubernetes-operators.md says of rights is so; test_training_services.py checks its configs and keys."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from nasflow.training_service.make import _CLUSTERS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kubernetes-operators.md").read_text()
RULES = re.findall(r"^\| `(\w+)` \| `(\{apiGroups.*?\})` \|$", TEXT, re.MULTILINE)
KINDS = re.findall(r"^## `(\w+)`$", TEXT, re.MULTILINE)


def test_each_kind_has_rights_and_a_label():
    assert [kind for kind, _ in RULES] == KINDS
    assert re.findall(r"^\| `(\w+)` \| real", TEXT, re.MULTILINE) == KINDS


@pytest.mark.parametrize(("kind", "rule"), RULES, ids=KINDS)
def test_its_rules_have_the_rights_that_are_checked(kind, rule):
    pods = pytest.importorskip("nasflow.training_service.cluster.kubernetes.pods")
    module, _, name = _CLUSTERS[kind].partition(":")
    service = getattr(import_module(f"nasflow.training_service.{module}"), name)
    granted = yaml.safe_load(rule)
    assert granted["apiGroups"] == [service.api_version.partition("/")[0]]
    wanted = set(pods.rights(service.resource)) - {("list", "pods"), ("delete", "pods")}
    assert {(verb, resource) for verb in granted["verbs"] for resource in granted["resources"]} == wanted
