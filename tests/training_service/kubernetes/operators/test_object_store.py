"""Jobs of operators have their files from an object store, whose credentials are only in the study's Secret."""

import pytest

from nasflow.testing.training_service import epochs, finish, script, until
from tests.object_store.s3 import KEY, SECRET, on_nodes

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training_service.kubernetes.operators import services

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    "make",
    [services.pytorch_job, services.train_job, services.adaptdl_job, services.framework],
    ids=lambda make: make.__name__,
)
def test_files_come_and_go_by_an_object_store(make, operators, s3, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")  # base_dir of scripted jobs
    storage = on_nodes(s3.storage()) | {"scratch": str(tmp_path / "scratch")}
    service = make(tmp_path / "root", storage=storage)
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    try:
        until(lambda: epochs(service, handle) == [(1, False)], "first epoch", 60)
        kinds = [kind for kind in (service.resource, service.besides, "pods", "events") if kind]
        objects = str([service._api.list(kind) for kind in kinds])
        assert "s3://bucket/searches" in objects
        assert KEY not in objects and SECRET not in objects
        for job in tmp_path.glob("scratch/nasflow-*/run-*/jobs/*"):
            (job.parents[1] / "go").touch()
        assert finish(service, handle, 60).exit_code == 0, service.log_tail(handle)
        assert epochs(service, handle) == [(1, False), (2, False)]
    finally:
        service.cleanup()
    assert service._api.list("secrets", service._selector) == []
    assert s3.objects() == []
