"""Sections as strangers write them: each is refused with its key before anything is written."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import parse_config
from nasflow.errors import NasflowError
from nasflow.training_service.make import make_service
from tests.training_service.check.checks import SEARCH

RAY = {"kind": "ray", "address": "http://127.0.0.1:9"}
PAI = {"kind": "openpai", "url": "http://127.0.0.1:9/rest-server", "user": "me", "token": "hush-hush", "image": "any"}
STORAGES: list[tuple[Any, str]] = [
    ("s3://bucket/a", "training_service.storage: should be a mapping"),
    ({}, "training_service.storage.url: this key is required"),
    ({"url": "s3://bucket/a", "local": "/mnt"}, "training_service.storage.url: unknown key; known here: local, remote"),
    ({"url": "/mnt/a"}, "training_service.storage.url: '/mnt/a' is no URL"),
    ({"url": "s3://"}, "training_service.storage.url: 's3://' names no folder"),
    ({"url": "file:///"}, "training_service.storage.url: 'file:///' names no folder"),
    ({"url": "file://mnt/a"}, "training_service.storage.url: 'file://mnt/a' has two slashes where"),
    ({"url": "memory://a"}, "training_service.storage.url: memory:// is in the memory of one process"),
    ({"url": "xyz://bucket/a"}, "training_service.storage: the storage can't be used: Protocol not known: xyz"),
    ({"url": "s3://my bucket/a"}, 'Invalid bucket name "my bucket"'),
    ({"url": {"env": "EMPTY"}}, "training_service.storage.url: '' is no URL"),
    ({"url": {"env": "TWO_LINES"}}, r"training_service.storage.url: 's3://a\nb' is no URL"),
    ({"url": {"env": "NOT_SET"}}, "training_service.storage.url: the environment variable NOT_SET is not set"),
    (
        {"url": "file:///dev/null/a"},
        "training_service.storage: the storage does not answer as it should: [Errno 20] Not a directory",
    ),
    ({"url": "file:///proc/a"}, "training_service.storage.url: [Errno 2] No such file or directory: '/proc/a'"),
    ({"url": "file:///a", "options": ["a"]}, "training_service.storage.options: should be a mapping"),
    ({"local": "/mnt/a", "remote": "data"}, "training_service.storage.remote: 'data' is no absolute path"),
    ({"local": "/mnt/a", "remote": "/data"}, "training_service.storage.local: the study's folder"),
]
SECTIONS: list[tuple[Any, str]] = [
    ("local", "training_service: should be a mapping with 'kind', one of debug, local, ssh"),
    ({"kind": "kuberntes"}, "training_service.kind: there is no 'kuberntes'; it should be one of debug, local"),
    ([], "training_service: List should have at least 1 item"),
    ([{"kind": "local"}, {"kind": "local"}], "training_service: 'local' is listed twice"),
    ({**RAY, "address": "auto"}, "training_service.address: auto is no address of a dashboard"),
    (
        {**RAY, "address": "http://no-such-host.invalid"},
        "training_service.address: Ray's Jobs API at http://no-such-host.invalid does",
    ),
    ({**PAI, "url": "pai.example.com"}, "training_service.url: begins with neither https:// nor http://"),
    (
        {**PAI, "token": {"env": "TWO_LINES"}},
        "training_service.token: this secret is empty, or has spaces, line breaks",
    ),
    (PAI, "training_service.url: OpenPAI at http://127.0.0.1:9/rest-server does not answer as it should"),
]


@pytest.mark.parametrize(
    ("section", "says"), [*(({**RAY, "storage": each}, says) for each, says in STORAGES), *SECTIONS]
)
def test_it_is_refused(section: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("TWO_LINES", "s3://a\nb")
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NasflowError) as refused:
        config = parse_config({**SEARCH, "training_service": section, "work_dir": str(tmp_path / "runs")})
        make_service(config.training_service, tmp_path / "runs" / "study", tmp_path).validate()
    assert says in str(refused.value)
    assert str(refused.value).isprintable()
    assert not list(tmp_path.iterdir()), "nothing half done"


@pytest.mark.parametrize(("url", "says"), [("s3://", "names no folder"), ("file://mnt/a", "has two slashes")])
def test_so_are_places_for_checkpoints(url: str, says: str) -> None:
    with pytest.raises(NasflowError, match=rf"checkpoint\.url: '{url}' {says}"):
        parse_config({**SEARCH, "checkpoint": {"url": url}})


def test_no_password_of_a_url_is_shown() -> None:
    with pytest.raises(NasflowError, match=r"has two slashes") as refused:
        parse_config({**SEARCH, "checkpoint": {"url": "file://me:hush@host/x"}})
    assert "hush" not in str(refused.value)
