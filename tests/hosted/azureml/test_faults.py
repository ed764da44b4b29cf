"""The Azure ML service while Azure, or what the config says of it, is not in order."""

import pytest

from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    await_status,
    epochs,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster import base
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import name_prefix
from tests.hosted import promises
from tests.hosted.azureml.emulator import WORKSPACE
from tests.hosted.azureml.service import make, submissions
from tests.hosted.emulator import Fault


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, azure, late):
    """Submitted again by the same name, it is there once."""
    prefix = name_prefix(root.resolve())
    hidden = [
        Fault("GET", "/jobs$", body=b'{"value": []}', times=1e9),
        Fault("GET", "/jobs/[^/]+$", code=404, times=1e9),
    ]
    promises.a_job_whose_answer_was_lost_runs_once(
        make(root),
        azure,
        Fault("PUT", "/jobs/", lost=True),
        hidden if late else [],
        lambda: len(submissions(azure, root)),
    )
    assert len([name for name in azure.jobs if name.startswith(prefix)]) == 1


def test_a_name_that_is_refused_because_it_is_there_is_no_error(root, azure):
    """As after a change of the config between two submissions of a run."""
    service = make(root)
    handle = service.submit(script("job", ["wait", "go"]))
    run = service._records.run("job")
    make(root, experiment_name="other")._give(run)
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert [each["properties"]["experimentName"] for each in submissions(azure, root)] == ["nasflow", "other"]


def test_a_list_that_lags_loses_no_job(root, azure, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    azure.faults = [Fault("GET", "/jobs$", body=b'{"value": []}', times=1e9)]
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    for _ in range(3):
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=503, times=1e9),
        Fault(code=502, times=1e9, body=b"<html>" + b"x" * 10**6),
        Fault(code=429, times=1e9),
        Fault(slow=3.0, times=1e9),
        Fault(lost=True, times=1e9),
        Fault(body=b"<html>log in</html>", times=1e9),
        Fault("GET", body=b"[" * 10**5, times=1e9),
        Fault("GET", body=b'{"text": 1}', times=1e9),
    ],
    ids=["503", "502", "429", "slow", "broken", "page", "deep", "shape"],
)
def test_a_service_out_of_order_is_waited_for(root, azure, fault):
    said = r"training_service\.url: Azure ML .*does not answer as it should"
    promises.a_service_out_of_order_is_waited_for(make(root), azure, fault, said)


def test_a_quota_that_is_full_is_said(root, azure):
    said = r"Azure ML refuses such jobs; .*\(HTTP 400: The quota is used up\.\)"
    promises.a_quota_that_is_full_is_said(make, azure, root, said)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, r"training_service\.workspace_name: this account may not run jobs in 'vision'; ask for its role AzureML"),
        (404, r"training_service\.workspace_name: Azure knows no workspace 'vision' in resource group 'lab'"),
        (422, r"training_service: Azure ML refuses such jobs; .*\(HTTP 422: no such SKU\)"),
    ],
)
def test_a_refusal_is_one_sentence(root, azure, code, said):
    azure.faults = [Fault("PUT", "/jobs/", code=code, body=b'{"error": {"code": "X", "message": "no such SKU"}}')]
    with pytest.raises(ServiceError, match=said):
        make(root).submit(script("job"))


def test_a_token_that_expires_is_said_and_can_be_renewed(root, azure, monkeypatch):
    promises.a_secret_that_expires_is_said_and_can_be_renewed(
        make(root),
        lambda: setattr(azure, "token", "renewed"),
        lambda: monkeypatch.setenv("AZURE_TOKEN", "renewed"),
        r"training_service\.token: Azure does not take it, it may have expired",
    )


def test_validate_says_what_is_wrong(root, azure, monkeypatch):
    make(root).validate()
    assert not root.exists()
    for options in ({"workspace_name": "sound"}, {"resource_group": "other"}, {"subscription_id": "0"}):
        with pytest.raises(ServiceError, match=r"training_service\.workspace_name: Azure knows no workspace '.*404"):
            make(root, **options).validate()
    with pytest.raises(ServiceError, match=r"training_service\.compute_target: workspace 'vision' has no compute 'x'"):
        make(root, compute_target="x").validate()
    with pytest.raises(ServiceError, match=r"compute_target: compute 'broken' can't run jobs: Azure calls it Failed"):
        make(root, compute_target="broken").validate()
    with pytest.raises(ServiceError, match=r"training_service\.environment: workspace 'vision' has no environment 'x"):
        make(root, image=None, environment="x:1").validate()
    with pytest.raises(ClusterSilentError, match=r"http://127\.0\.0\.1:9 does not answer as it should: .*refused"):
        make(root, url="http://127.0.0.1:9").validate()
    azure.faults = [Fault(code=302)]
    with pytest.raises(ServiceError, match=r"training_service\.url: \S+ redirects elsewhere"):
        make(root).validate()
    promises.a_secret_that_can_not_be_sent_is_refused_unread(make, root, monkeypatch, "AZURE_TOKEN", "token")


@pytest.mark.parametrize("options", [{"image": None}, {"environment": "torch:2"}])
def test_an_image_or_an_environment_is_given(root, options):
    with pytest.raises(ValueError, match="give either image or environment"):
        make(root, **options)


def test_many_jobs_come_in_pages_of_this_host_only(root, azure):
    service = make(root, slots=7)
    handles = [service.submit(script(f"job-{i}", ["wait", "go"])) for i in range(7)]
    for handle in handles:
        await_status(service, handle, JobStatus.RUNNING)
    azure.requests.clear()
    assert len(service._look()) == 7
    assert [each.path for each in azure.requests] == [f"{WORKSPACE}/jobs"] * 3
    azure.url, known = "http://127.0.0.1:9", azure.url  # as a link to the next page may be wrong
    try:
        assert len(service._look()) == 7
    finally:
        azure.url = known
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 7
    assert len(service._look()) == 7  # of which none runs


def test_what_runs_is_found_without_all_that_has_ended(root, azure):
    """However long Azure's list has become; here it has three jobs a page."""
    service = make(root)
    for i in range(4):
        assert finish(service, service.submit(script(f"job-{i}"))).exit_code == 0
    handle = service.submit(script("last", ["wait", "go"]))
    until(lambda: numbers(service, "jobs/last/runs"), "start of the job")
    azure.requests.clear()
    service.prepare()
    assert [each.path for each in azure.requests] == [f"{WORKSPACE}/jobs"]
    assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
