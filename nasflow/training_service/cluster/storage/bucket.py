"""Requests to the storage of a config, by fsspec."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from nasflow.config.secret.secret_url import MASK, SecretUrl, hide_passwords
from nasflow.config.secret.secrets import BlockSecret, EnvironmentSecret, SecretText, reveal, secrets_of
from nasflow.config.services.storage import ObjectStoreConfig, check_storage_url
from nasflow.errors import ServiceError
from nasflow.training_service.cluster.storage.base import StorageSilentError

SECRETS = "NASFLOW_STORAGE_SECRETS"
"""The environment variable with the texts of secrets, by their places in the config, as JSON."""
KEY = "training_service.storage"
# Seconds, and retries of botocore below those of s3fs and of nasflow: others wait while a request does.
_S3_PATIENCE = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}}
_AZURE_PATIENCE: dict[str, Any] = {"connection_timeout": 5, "read_timeout": 20}
_ANSWERS_WITHIN = 30.0  # seconds for a call, which may take several requests and repeats them
_SLOWEST = 1e4  # bytes a second, of files
_MOST_REMOVED = 1000  # objects in one call


def texts_of(config: ObjectStoreConfig) -> dict[str, str]:
    """Return the texts of a config's secrets, by their places in it.

    Raises:
        ConfigError: one can't be read.
    """
    return {place: reveal(secret, f"{KEY}.{place}") for place, secret in secrets_of(config)}


def texts_on_node(config: ObjectStoreConfig) -> dict[str, str]:
    """As `texts_of`, on a node, whose environment then has none of them any more."""
    given: dict[str, str] = json.loads(os.environ.pop(SECRETS, "{}"))
    found = dict(secrets_of(config))
    texts = {place: given.get(place) or reveal(secret, f"{KEY}.{place}") for place, secret in found.items()}
    for secret in found.values():
        if isinstance(secret, EnvironmentSecret):
            os.environ.pop(secret.env, None)
    return texts


def _filled(value: Any, place: str, texts: Mapping[str, Any]) -> Any:
    """Return a part of the config with the texts of its secrets in their places."""
    match value:
        case dict():
            return {name: _filled(item, f"{place}.{name}", texts) for name, item in value.items()}
        case list():
            return [_filled(item, f"{place}.{number}", texts) for number, item in enumerate(value)]
        case SecretText() | SecretUrl() | EnvironmentSecret() | BlockSecret():
            return texts.get(place, value)
    return value


class Bucket:
    """A folder of the storage. Every path is relative to it.

    Args:
        config: the storage.
        texts: of its secrets, by their places in the config.
        folder: the folder's path in the storage.

    Raises:
        ServiceError: the storage can't be used as configured.
    """

    def __init__(self, config: ObjectStoreConfig, texts: Mapping[str, str], folder: str):
        self._texts = texts
        self._as_they_are: Mapping[str, Any] = {}  # adlfs otherwise asks for each object twice before it removes it
        try:
            check_storage_url(texts["url"])
        except ValueError as error:
            raise ServiceError(f"{KEY}.url: {error}") from None
        url = f"{texts['url'].rstrip('/')}/{folder}"
        options = _filled(config.options, "options", texts)
        if url.startswith(("s3://", "s3a://")):
            given = options.get("config_kwargs", {})
            if not isinstance(given, dict):
                raise ServiceError(f"{KEY}.options.config_kwargs: should be a mapping")
            options = {**options, "config_kwargs": {**_S3_PATIENCE, **given}}
        try:
            self._files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
            if url.startswith(("az://", "abfs://", "abfss://")):
                _retry_soon(self._files)
                self._as_they_are = {"expand_path": False}
        except ImportError as error:
            raise ServiceError(f"{KEY}.url: {self._clean(error)}") from None
        except Exception as error:  # a storage may raise anything
            raise ServiceError(f"{KEY}: the storage can't be used: {self._clean(error)}") from None
        self._is_object_store = bool(getattr(self._files, "async_impl", False))
        self._folder = str(path).rstrip("/")

    def put(self, source: Path, path: str) -> None:
        """Write an object.

        Raises:
            StorageSilentError: no answer, as all methods.
        """
        place, size = f"{self._folder}/{path}", source.stat().st_size
        try:
            self._ask("put_file", str(source), place, size=size)
        except FileNotFoundError as error:
            if self._is_object_store:  # which lacks the bucket
                raise StorageSilentError(f"{KEY}.url: {self._clean(error)}") from None
            self._ask("makedirs", place.rpartition("/")[0], exist_ok=True)
            self._ask("put_file", str(source), place, size=size)

    def get(self, path: str, target: Path, size: int | None = None) -> None:
        """Read an object into a file; one of `size` bytes has to come in time. Raises FileNotFoundError."""
        self._ask("get_file", f"{self._folder}/{path}", str(target), size=size)

    def list(self, below: str = "") -> dict[str, int]:
        """Return the paths and sizes of all objects in the folder, or in a folder in it."""
        folder, start = f"{self._folder}/{below}".rstrip("/"), f"{self._folder}/"
        self._files.invalidate_cache()
        try:
            found = self._ask("find", folder, detail=True)
        except FileNotFoundError:
            return {}
        paths = {str(path): int(about.get("size") or 0) for path, about in found.items()}
        return {path.removeprefix(start): size for path, size in paths.items() if path.startswith(start)}

    def remove(self, paths: Collection[str]) -> None:
        """Remove objects. Those that are not there are ignored."""
        if not paths:
            return
        places = [f"{self._folder}/{path}" for path in paths]
        if self._is_object_store:
            for begin in range(0, len(places), _MOST_REMOVED):
                self._ask("rm", places[begin : begin + _MOST_REMOVED], **self._as_they_are)
            return
        for place in places:
            try:
                self._ask("rm_file", place)
            except FileNotFoundError:
                continue

    def remove_all(self) -> None:
        """Remove all objects in the folder, and the folder where there are such."""
        self.remove(self.list().keys())
        if not self._is_object_store and self._ask("exists", self._folder):
            self._ask("rm", self._folder, recursive=True)

    def _ask(self, method: str, *args: Any, size: int | None = 0, **options: Any) -> Any:
        """Call a method of the file system. An object store has to answer in time, unless `size` is not known."""
        within = float("inf") if size is None else _ANSWERS_WITHIN + size / _SLOWEST
        try:
            if not self._is_object_store:
                return getattr(self._files, method)(*args, **options)
            call, timeout = getattr(self._files, f"_{method}"), None if size is None else within
            return sync(self._files.loop, call, *args, timeout=timeout, **options)
        except FileNotFoundError:
            raise
        except FSTimeoutError:
            raise StorageSilentError(f"{KEY}: the storage has not answered within {within:.0f} seconds") from None
        except Exception as error:  # a storage may raise anything
            text = f"{KEY}: the storage does not answer as it should: {self._clean(error)}"
            raise StorageSilentError(text) from None

    def _clean(self, error: BaseException) -> str:
        """Return an error's text without secrets."""
        text = " ".join(str(error).split())[:400] or type(error).__name__
        for place, secret in self._texts.items():
            text = hide_passwords(text, secret) if place == "url" else text.replace(secret, MASK) if secret else text
        return text


def _retry_soon(files: Any) -> None:
    """Replace the client of an adlfs file system: it repeats requests after 15 to 24 seconds, without an option."""
    from azure.storage.blob.aio import BlobServiceClient, ExponentialRetry  # noqa: PLC0415 - optional

    client = files.service_client
    once = ExponentialRetry(initial_backoff=0, increment_base=1, retry_total=1, random_jitter_range=1)  # 0 to 2 s
    files.service_client = BlobServiceClient(
        client.url, credential=client.credential, retry_policy=once, **_AZURE_PATIENCE
    )
