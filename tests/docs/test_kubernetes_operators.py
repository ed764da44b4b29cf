"""What docs/kubernetes-operators.md says of rights is so; test_training_services.py checks its configs and keys."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from nasflow.config.services.union import ServiceConfig
from nasflow.training_service.make import make_service

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kubernetes-operators.md").read_text()
RULES = re.findall(r"^\| `(\w+)`(?:, of (\w+)s)? \| `(\{apiGroups.*?\})` \|$", TEXT, re.MULTILINE)
KINDS = re.findall(r"^## `(\w+)`$", TEXT, re.MULTILINE)


def test_each_kind_has_rights_and_a_label():
    assert list(dict.fromkeys(kind for kind, _, _ in RULES)) == KINDS
    assert re.findall(r"^\| `(\w+)` \| real", TEXT, re.MULTILINE) == KINDS


@pytest.mark.parametrize(("kind", "of", "rule"), RULES)
def test_its_rules_have_the_rights_that_are_checked(tmp_path, kind, of, rule):
    pods = pytest.importorskip("nasflow.training_service.cluster.kubernetes.pods")
    section = {"kind": kind, "image": "any", **({"job_kind": of} if of else {})}
    config = TypeAdapter(ServiceConfig).validate_python(section)
    service = make_service(config, tmp_path / "root", tmp_path)
    granted = yaml.safe_load(rule)
    assert granted["apiGroups"] == [service.api_version.partition("/")[0]]
    wanted = set(pods.rights(service.resource, service.besides))
    wanted -= {("list", "pods"), ("delete", "pods")}
    assert {(verb, resource) for verb in granted["verbs"] for resource in granted["resources"]} == wanted
