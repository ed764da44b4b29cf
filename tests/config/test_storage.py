"""The `storage` section: what it refuses, and what of it is secret."""

import json

import pytest
from pydantic import ValidationError

from nasflow.config.reading.errors import explain
from nasflow.config.secret.secrets import EnvironmentSecret, SecretText, secrets_of
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.storage import ObjectStoreConfig, SharedFolderConfig

OPTIONS = {
    "key": "AKIA",
    "secret": {"env": "STORE_SECRET"},
    "client_kwargs": {"endpoint_url": "http://there", "headers": [{"token": "hush"}]},
    "anon": False,
}


def storage(**section):
    return SlurmServiceConfig.model_validate({"kind": "slurm", "storage": section}).storage


def test_a_section_is_of_the_kind_that_its_keys_say():
    assert isinstance(storage(local="/here", remote="/there"), SharedFolderConfig)
    assert isinstance(storage(url="s3://bucket/folder"), ObjectStoreConfig)
    assert SlurmServiceConfig().storage is None


def test_secrets_among_the_options_are_masked_wherever_they_are():
    config = storage(url="sftp://me:hush@there/folder", options=OPTIONS)
    assert {place for place, _ in secrets_of(config)} == {
        "url",
        "options.key",
        "options.secret",
        "options.client_kwargs.headers.0.token",
    }
    assert isinstance(config.options["key"], SecretText)
    assert config.options["secret"] == EnvironmentSecret(env="STORE_SECRET")
    for text in (config.model_dump_json(), repr(config), str(config)):
        assert "hush" not in text and "AKIA" not in text
    again = ObjectStoreConfig.model_validate(json.loads(config.model_dump_json()))
    assert again.options["secret"] == EnvironmentSecret(env="STORE_SECRET")
    assert again.options["client_kwargs"]["endpoint_url"] == "http://there"
    assert again.options["anon"] is False


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"local": "/here"}, "remote\n  Field required"),
        ({"local": "here", "remote": "/there"}, "'here' is no absolute path; give one such as /mnt/nas"),
        ({"local": "/here/../x", "remote": "/there"}, "is no absolute path"),
        ({"url": "bucket"}, "'bucket' is no URL; give one such as s3://bucket/folder"),
        ({"url": "s3://b", "option": {}}, "Extra inputs are not permitted"),
        ({"url": "s3://b", "options": {"a": {"b": object()}}}, "'b' is of type object; give text, numbers"),
        ({"url": "s3://b", "poll_seconds": 0}, "greater than 0"),
    ],
)
def test_what_is_refused(section, sentence):
    with pytest.raises(ValueError, match=sentence):
        storage(**section)


def test_an_error_names_the_key_as_it_is_written():
    for section, sentence in (
        ({"local": "/here"}, "storage.remote: this key is required"),
        ({"url": "s3://b", "option": {}}, "storage.option: unknown key; did you mean 'options'?"),
    ):
        with pytest.raises(ValidationError) as caught:
            storage(**section)
        assert explain(caught.value, SlurmServiceConfig) == sentence
