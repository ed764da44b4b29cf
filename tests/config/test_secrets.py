"""Secrets of a config: where they can be read, and where they can't."""

import copy
import json
import pickle
from typing import Any

import pytest

from nasflow.config.job_secrets import job_secrets
from nasflow.config.search import SearchConfig, parse_config
from nasflow.config.secret.secret_url import SecretUrl, hide_passwords
from nasflow.config.secret.secrets import give, given, refuse_on_record, reveal, written_out
from nasflow.errors import ConfigError

PASSWORDS = [
    ("postgresql://me:hush@host/db", "postgresql://me:***@host/db"),
    ("postgresql://me:hu sh/with?all@host/db", "postgresql://me:***@host/db"),
    ("postgresql://me@host/db?password=hush", "postgresql://me@host/db?password=***"),
    (
        "postgresql://me@host/db?sslkey=k&sslpassword=hu%23sh#x&a=b",
        "postgresql://me@host/db?sslkey=k&sslpassword=***&a=b",
    ),
    ("postgresql://me@host/db?p%61ssword=hush", "postgresql://me@host/db?p%61ssword=***"),
    ("simplecache::ftp://u:hush@h", "simplecache::ftp://u:***@h"),
    ("zip://a.zip::s3://key:hush@bucket/x@y", "zip://a.zip::s3://key:***@bucket/x@y"),
    ("ftp://h/x?password=hush", "ftp://h/x?password=***"),
    ("az://container/x?sv=1&sig=hush", "az://container/x?sv=1&sig=***"),
    ("sftp://u:p@hush@h:22/x", "sftp://u:***@h:22/x"),
]
PLAIN = [
    "sqlite:////tmp/nasflow.db",
    "postgresql://me@/db?host=/run/postgresql&options=-csearch_path%3Dx&passfile=/etc/pgpass",
    "s3://bucket/folder",
    "sftp://me@host:22/x",
    "memory://x",
]


def config(**changes: Any) -> SearchConfig:
    target = {"target": "nasflow.space.ready:mlp"}
    evaluator = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}}
    return parse_config({"name": "kept", "space": target, "evaluator": evaluator, **changes})


@pytest.mark.parametrize(("url", "shown"), PASSWORDS)
def test_a_url_does_not_show_its_passwords(url: str, shown: str) -> None:
    secret = SecretUrl(url)
    assert (str(secret), secret.has_password, secret.is_masked) == (shown, True, False)
    assert "hush" not in repr(secret)
    assert copy.deepcopy(secret).get_secret_value() == reveal(secret, "store") == url
    assert SecretUrl(shown).is_masked
    with pytest.raises(ConfigError, match=r"^store: the text of a secret is not recorded; write {env: NAME}"):
        reveal(SecretUrl(shown), "store")


@pytest.mark.parametrize("url", PLAIN)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    secret = SecretUrl(url)
    assert (str(secret), secret.has_password, reveal(secret, "store")) == (url, False, url)


@pytest.mark.parametrize("key", ["store", "checkpoint", "password"])
def test_nothing_that_is_made_of_a_config_has_a_secret_in_it(key: str) -> None:
    changes: dict[str, Any] = {
        "store": {"store": "postgresql://me:hush@host/db"},
        "checkpoint": {"checkpoint": {"url": "memory://me:hush@host/x"}},
        "password": {"training_service": {"kind": "ssh", "hosts": [{"host": "h", "password": "hush"}]}},
    }
    secretive = config(**changes[key])
    made = [
        secretive.model_dump_json(),
        repr(secretive),
        str(secretive.model_dump()),
        json.dumps(secretive.model_dump(mode="json")),
    ]
    assert not [text for text in made if "hush" in text]
    assert b"hush" not in pickle.dumps(secretive)
    assert pickle.loads(pickle.dumps(config())) == config()
    assert len(written_out(secretive)) == 1 and written_out(config()) == []


def test_what_was_recorded_with_a_flow_run_is_refused() -> None:
    url = "postgresql://me:hush@host/db"
    safe = config(store=url)
    refuse_on_record(safe, {"config": safe.model_dump(mode="json")})
    with pytest.raises(
        ConfigError, match=r"^store: Prefect keeps and shows it .*; delete the run, and write {env: N"
    ) as e:
        refuse_on_record(safe, {"config": {"store": url}})
    assert "hush" not in str(e.value)
    hosts = [{"host": "h", "password": "hush"}]
    recorded = config(store=url, training_service={"kind": "ssh", "hosts": hosts}).model_dump(mode="json")
    refuse_on_record(parse_config(recorded), {"config": recorded})  # reveal says that their text is lost


def test_errors_of_drivers_do_not_quote_passwords() -> None:
    url = "postgresql://me:hu%20sh@host/db?sslpassword=psst"
    said = hide_passwords("no 'hu sh' (hu%20sh) or psst for me", url)
    assert said == "no '***' (***) or *** for me"


def test_what_jobs_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL of checkpoints, however it is given, and none of the variables with secrets."""
    monkeypatch.setenv("FAR", "memory://me:hush@host/x")
    by_variable = job_secrets(config(store={"env": "STORE"}, checkpoint={"url": {"env": "FAR"}}))
    assert by_variable.withheld == {"STORE", "FAR"} and by_variable.only_here == ()
    assert by_variable.needed == {"FAR"}
    assert by_variable.texts() == {"$FAR": "memory://me:hush@host/x"}
    written = job_secrets(config(checkpoint={"url": "memory://me:hush@host/x"}))
    assert written.texts() == {"memory://me:***@host/x": "memory://me:hush@host/x"}
    assert written.only_here == ("checkpoint.url",)
    assert job_secrets(config(checkpoint={"url": "s3://bucket/x"})).texts() == {}
    monkeypatch.setattr("nasflow.config.secret.secrets._given", {})
    give(written.texts())
    assert reveal(SecretUrl("memory://me:***@host/x"), "checkpoint.url") == "memory://me:hush@host/x"
    assert dict(given()) == dict(written.texts())


@pytest.mark.parametrize(
    "wrong",
    [
        {"training_service": {"kind": "ssh", "hosts": [{"host": "h", "password": 4711}]}},
        {"name": "postgresql://me:4711@host"},
        {"seed": "memory://me:4711@host"},
    ],
)
def test_a_mistake_in_a_config_is_explained_without_its_secrets(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        config(**wrong)
    assert "4711" not in str(error.value)


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (5, "store: Input should be a valid string"),
        ({"envv": "X"}, "store.env: this key is required; store.envv: unknown key; did you mean 'env'?"),
        ({"prefect_block": "b", "x": 1}, "store.x: unknown key; known here: prefect_block"),
    ],
)
def test_a_mistake_in_a_reference_is_explained_by_its_kind(store: Any, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(store=store)
    assert str(error.value).startswith(f"config: {words}")
