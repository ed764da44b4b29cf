"""URLs that may have passwords in them: which parts are secret, and a type that shows none of these."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus

from pydantic import GetCoreSchemaHandler, Secret, SerializationInfo
from pydantic_core import CoreSchema, PydanticSerializationUnexpectedValue, core_schema

MASK = "***"
_LONGEST_CHAIN = 8  # times '::'; fsspec opens what it chains by recursion
# A user's password ends at the last @ of the host part, or, as SQLAlchemy reads it, at the first @ after a slash in it.
_USER_INFO = re.compile(r"(?P<before>://[^/?#:@]*:(?!:))(?P<secret>[^/?#]*|[^@]*)(?=@)")
_QUERY_ITEM = re.compile(r"(?P<before>[?&;](?P<key>[^=&;?]+)=)(?P<secret>[^&]*)")
_SECRET_KEY = re.compile(
    r"pass(word|phrase|wd)?$|pwd$|secret|token|credential|(api|access|account|private|shared)[_-]?key|^sig(nature)?$",
    re.IGNORECASE,
)


class SecretUrl(Secret[str]):
    """A URL. Shown, written as JSON or pickled, it has `***` for each password in it, also in its query."""

    @property
    def has_password(self) -> bool:
        """Whether any part of it is secret."""
        return any(True for _ in _secrets(self.get_secret_value()))

    @property
    def is_masked(self) -> bool:
        """Whether a secret part of it is lost, because it was read from where it had been shown."""
        return MASK in _secrets(self.get_secret_value())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema with a serializer that leaves what is no URL to the other members of a union."""
        schema: Any = super().__get_pydantic_core_schema__(source, handler)
        serializer = core_schema.plain_serializer_function_ser_schema(_serialized, info_arg=True)
        return {**schema, "serialization": serializer}

    def _display(self) -> str:
        return without_passwords(self.get_secret_value())

    def __reduce__(self) -> tuple[type["SecretUrl"], tuple[str]]:
        return SecretUrl, (self._display(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SecretUrl":
        return self


def _serialized(value: object, info: SerializationInfo) -> object:
    if not isinstance(value, SecretUrl | str):
        raise PydanticSerializationUnexpectedValue(f"{type(value).__name__} is no URL")
    return without_passwords(str(value)) if info.mode == "json" else value


def check_folder_url(url: str) -> None:
    """Raise ValueError if a URL can't be that of a folder in a storage of fsspec's."""
    if url.count("::") > _LONGEST_CHAIN:
        raise ValueError(f"'::' chains more than {_LONGEST_CHAIN} file systems; write it with fewer")
    scheme, mark, place = url.partition("://")
    if not mark or not scheme or not url.isprintable():
        raise ValueError(f"{without_passwords(url)!r} is no URL; give one such as s3://bucket/folder or file:///folder")
    if url != url.strip():
        raise ValueError(f"{without_passwords(url)!r} begins or ends with a space; remove it")
    if not place.strip("/ "):
        raise ValueError(f"'{url}' names no folder; give one such as s3://bucket/folder or file:///folder")
    if scheme in ("file", "local") and not place.startswith("/"):
        raise ValueError(f"'{without_passwords(url)}' has two slashes where file:///folder has three")


def is_secret_key(key: str) -> bool:
    """Whether what has this name is probably a secret, such as `sslpassword`."""
    return _SECRET_KEY.search(key) is not None


def without_passwords(url: str) -> str:
    """Return a URL, or several that are chained by `::`, with `***` for each password of a user or in a query."""
    url = _USER_INFO.sub(rf"\g<before>{MASK}", url)
    return _QUERY_ITEM.sub(lambda item: item["before"] + MASK if _is_secret(item) else item[0], url)


def hide_passwords(text: str, url: str) -> str:
    """Return a text, such as an error of a driver, with `***` for the passwords of a URL wherever it quotes them."""
    for secret in _secrets(url):
        for spelling in {secret, unquote(secret), unquote_plus(secret)}:
            text = text.replace(spelling, MASK) if spelling else text
    return text


def _secrets(url: str) -> Iterator[str]:
    yield from (found["secret"] for found in _USER_INFO.finditer(url) if found["secret"])
    yield from (item["secret"] for item in _QUERY_ITEM.finditer(url) if item["secret"] and _is_secret(item))


def _is_secret(item: re.Match[str]) -> bool:
    return is_secret_key(unquote(item["key"]))
