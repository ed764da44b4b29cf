"""Answers of hosted services: lists of jobs, and what they say of errors."""

import json
import random
from pathlib import Path

from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.hosted import azureml, dlts, openpai
from nasflow.training_service.hosted.http_client import Answer, HttpClient
from tests.fuzz.target import Target

_SECRET = "fuzz-secret"
_JOBS = [
    {"name": "nasflow-1-job-2", "state": "RUNNING", "subState": "AttemptRunning", "appExitCode": None},
    {"name": "nasflow-1-job-3", "state": "FAILED", "appExitCode": -1200, "launchedTime": 1},
    {"jobId": "a", "jobName": "nasflow-1-job-4", "jobStatus": "error", "errorMsg": "node lost"},
    {"name": "a", "properties": {"status": "Failed", "services": {"Studio": {"endpoint": "https://example.com"}}}},
]
_VALUES = (None, [], {}, [[]], True, -1.5, 10**400, "\x00\x1b[2J", "\ud800", _SECRET, {"message": [_SECRET]})


def _reshape(rng: random.Random, data: bytes) -> bytes:
    """Give a key another kind of value."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    jobs = [job for job in value if isinstance(job, dict) and job] if isinstance(value, list) else []
    if not jobs:
        return json.dumps(rng.choice(_VALUES)).encode()
    job = rng.choice(jobs)
    job[rng.choice(list(job))] = rng.choice(_VALUES)
    return json.dumps(value).encode()


def _read(data: bytes, folder: Path) -> int:
    answer = Answer(200, data)
    client = HttpClient("a service", "http://127.0.0.1:9", headers={"Authorization": f"Bearer {_SECRET}"})
    try:
        said = client.shown(answer)
        assert _SECRET not in said and said.isprintable()
        for job in client.json_of(answer, list):
            if isinstance(job, dict):
                for seen in (openpai._seen(job), dlts._seen(job), azureml._seen(job)):
                    assert seen.reason.isprintable()
    except ClusterSilentError as error:
        assert _SECRET not in str(error)
        raise
    finally:
        client.close()
    return 1


TARGET = Target(
    "service answer",
    [json.dumps(_JOBS).encode(), b'{"code": "ConflictJobError", "message": "there already"}', b"<html>log in</html>"],
    _read,
    (ClusterSilentError,),
    (b'"state"', b'"jobStatus"', b"[[[[[[", b"null", b"1e999", _SECRET.encode()),
    _reshape,
)
