"""Configs as strangers write them, before any job is submitted."""

import re

import pytest

from nasflow.errors import ServiceError
from tests.training_service.kubernetes.service import make

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # the first test to start may have to build Kubernetes

TEMPLATES = {
    "spec: should be a mapping": {"spec": None},
    "metadata: should be a mapping": {"metadata": ["labels"]},
    "spec.containers: should be a list of mappings, each with a 'name'": {"spec": {"containers": {"name": "job"}}},
    "spec.containers.job.command: is nasflow's own; leave it out": {
        "spec": {"containers": [{"name": "job", "command": ["sleep", "9"]}]}
    },
    "spec.containers.job.args: is nasflow's own; leave it out": {
        "spec": {"containers": [{"name": "job", "args": ["--debug"]}]}
    },
    "spec.restartPolicy: is nasflow's own; leave it out": {"spec": {"restartPolicy": "OnFailure"}},
    "metadata.labels.nasflow/root: is nasflow's own; leave it out": {"metadata": {"labels": {"nasflow/root": "mine"}}},
}


@pytest.mark.parametrize("says", TEMPLATES)
def test_what_a_job_needs_can_not_be_replaced(root, says):
    with pytest.raises(ServiceError, match=rf"^training_service\.pod_template\.{re.escape(says)}$"):
        make(root, pod_template=TEMPLATES[says]).validate()


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("spec.template.spec.nodeSelectr", {"pod_template": {"spec": {"nodeSelectr": {"a": "b"}}}}),
        ("spec.template.template", {"pod_template": {"template": {"spec": {"hostNetwork": True}}}}),
        (
            "spec.template.spec.containers[0].resource",
            {"pod_template": {"spec": {"containers": [{"name": "job", "resource": {"limits": {"cpu": 2}}}]}}},
        ),
        (
            "spec.template.spec.tolerations[1].efect",
            {"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists", "efect": "x"}]},
        ),
        (
            "spec.template.spec.volumes[0].emptydir",
            {"volumes": [{"name": "a", "emptydir": {"medium": "Memory"}}]},
        ),
    ],
)
def test_fields_that_the_server_does_not_know_are_named(root, field, options):
    text = f"Kubernetes does not know the field {field}; see to its spelling and place"
    with pytest.raises(ServiceError, match=re.escape(text)):
        make(root, **options).validate()


def test_what_is_right_is_taken(root):
    side = {"name": "side", "image": "busybox", "command": ["sleep", "9"], "args": []}
    job = {"name": "job", "env": [{"name": "A", "value": "b"}], "securityContext": {"privileged": False}}
    make(
        root,
        labels={"team": "vision"},
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        volume_mounts=[
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "shm", "mountPath": "/scratch", "subPath": "a"},
        ],
        tolerations=[{"operator": "Exists"}],
        pod_template={
            "metadata": {"annotations": {"owner": "me"}, "labels": {"app": "search"}},
            "spec": {"containers": [side, job], "hostIPC": False, "priorityClassName": ""},
        },
    ).validate()
