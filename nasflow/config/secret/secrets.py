"""Secrets in a config: by reference, so that they appear in no database, log or command line."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, SecretStr, Tag

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.values import Section
from nasflow.errors import ConfigError

_MASK = SecretStr("any").__str__()


class SecretText(SecretStr):
    """A secret's text. Shown, written as JSON or pickled, it is masked."""

    def __reduce__(self) -> tuple[type["SecretText"], tuple[str]]:
        return SecretText, (str(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SecretText":
        return self


class EnvironmentSecret(Section):
    """The value of an environment variable."""

    env: str = Field(min_length=1, title="Environment variable", description="its name, where the search runs")

    def __str__(self) -> str:
        return f"${self.env}"


class BlockSecret(Section):
    """The value of a Prefect `Secret` block."""

    prefect_block: str = Field(min_length=1, title="Prefect block", description="name of a Secret block")

    def __str__(self) -> str:
        return f"Prefect's block '{self.prefect_block}'"


def _tag(secret: Any) -> str:
    """Return the member of a union that a secret is meant as, so that an error names only that one."""
    if isinstance(secret, BlockSecret) or (isinstance(secret, dict) and "prefect_block" in secret):
        return "BlockSecret"
    return "EnvironmentSecret" if isinstance(secret, EnvironmentSecret | dict) else "value"


_Environment = Annotated[EnvironmentSecret, Tag("EnvironmentSecret")]
_Block = Annotated[BlockSecret, Tag("BlockSecret")]
Secret = Annotated[
    Annotated[SecretText, Tag("value")] | _Environment | _Block,
    Discriminator(_tag),
    Field(
        title="Secret", description="{env: NAME}, {prefect_block: NAME}, or the text itself, which is not put on record"
    ),
]
"""A secret's text, or where it can be read."""
SecretLocation = Annotated[
    Annotated[SecretUrl, Field(title="URL"), Tag("value")] | _Environment | _Block, Discriminator(_tag)
]
"""A URL, or where it can be read. As text, it has no password in it."""

_block_readers: list[Callable[[str], str]] = []
_given: dict[str, str] = {}


def read_blocks_with(reader: Callable[[str], str]) -> None:
    """Set the function by which `reveal` reads a Prefect block, given its name. Only flows import Prefect."""
    _block_readers[:] = [reader]


def give(texts: Mapping[str, str]) -> None:
    """Let `reveal` return these texts of secrets, by the secrets as text: in a job, which can't read them itself."""
    _given.update(texts)


def given() -> Mapping[str, str]:
    """Return the texts that `give` has received."""
    return _given


def written_out(value: Any) -> list[str]:
    """Return the keys of a config, or of a part of it, that contain the text of a secret."""
    return [key for key, secret in secrets_of(value) if _text(secret)]


def refuse_on_record(value: Any, recorded: Any, key: str = "") -> None:
    """Raise ConfigError if the text of a secret of `value`, which is at `key`, is in `recorded`, a JSON value."""
    for place, secret in secrets_of(value, key):
        text = "" if _is_lost(secret) else _text(secret)
        if text and any(text == part for part in _strings(recorded)):
            raise ConfigError(
                f"{place}: Prefect keeps and shows it as a parameter of this flow run; delete the run, and write "
                "{env: NAME} or {prefect_block: NAME} in its place"
            )


def secrets_of(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the secrets of a config, or of a part of it at `key`, each with its key."""
    match value:
        case SecretStr() | SecretUrl() | EnvironmentSecret() | BlockSecret():
            yield key, value
            return
        case BaseModel():
            items = [(name, getattr(value, name)) for name in type(value).model_fields]
        case list() | tuple():
            items = [(str(place), item) for place, item in enumerate(value)]
        case dict():
            items = [(str(name), item) for name, item in value.items()]
        case _:
            return
    for name, item in items:
        yield from secrets_of(item, f"{key}.{name}" if key else name)


def reveal(secret: Secret | SecretLocation, key: str) -> str:
    """Return the text of a secret.

    Args:
        secret: the reference.
        key: its place in the config, for the error.

    Raises:
        ConfigError: there is no such variable or block, or its text was removed when the config was recorded.
    """
    if str(secret) in _given:
        return _given[str(secret)]
    match secret:
        case EnvironmentSecret(env=name):
            if name not in os.environ:
                raise ConfigError(f"{key}: the environment variable {name} is not set")
            return os.environ[name]
        case BlockSecret(prefect_block=name):
            if not _block_readers:
                raise ConfigError(f"{key}: Prefect's block '{name}' can't be read outside of a flow")
            return _block_readers[0](name)
        case SecretStr() | SecretUrl():
            if _is_lost(secret):
                raise ConfigError(
                    f"{key}: the text of a secret is not recorded; "
                    "write {env: NAME} or {prefect_block: NAME} instead"
                )
            return secret.get_secret_value()


def _is_lost(secret: Any) -> bool:
    """Whether the text of a secret was masked when the config was recorded or shown."""
    if isinstance(secret, SecretUrl):
        return secret.is_masked
    return isinstance(secret, SecretStr) and secret.get_secret_value() == _MASK


def _text(secret: Any) -> str:
    """Return the text of a secret that is written out; empty for any other."""
    if isinstance(secret, SecretStr) or (isinstance(secret, SecretUrl) and secret.has_password):
        return str(secret.get_secret_value())
    return ""


def _strings(value: Any) -> Iterator[str]:
    """Yield all text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
