"""One point of a space: a JSON object from label to chosen value, immutable and hashable."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nasflow.errors import SpaceError

_SCALARS = (str, int, float, bool, type(None))
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class Architecture(Mapping[str, Any]):
    """The value chosen at every label: JSON scalars, or lists of them for a subset.

    Equality and hash follow the canonical JSON text, so `1`, `1.0` and `True` stay different values and a round trip
    through JSON is exact. Labels keep the order in which they were asked, which equality ignores.
    """

    __slots__ = ("_canonical", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None):
        values = dict(values or {})
        try:
            self._canonical = _canonical(values)
        except (TypeError, ValueError) as error:
            raise SpaceError(f"an architecture must be plain JSON (label -> value): {error}") from None
        is_plain = all(type(value) in _SCALARS for value in values.values()) and all(type(key) is str for key in values)
        self._values: dict[str, Any] = values if is_plain else json.loads(json.dumps(values))

    @classmethod
    def from_json(cls, text: str) -> "Architecture":
        """Return the architecture that `to_json()` turned into `text`."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise SpaceError(f"an architecture is a JSON object, not {text[:60]}")
        return cls(values)

    def to_json(self) -> str:
        """Return canonical JSON: sorted labels, no white space. Equal architectures give equal texts."""
        return self._canonical

    @property
    def digest(self) -> str:
        """A 16-digit hexadecimal name for this architecture, stable across processes."""
        return hashlib.blake2b(self._canonical.encode(), digest_size=8).hexdigest()

    def __getitem__(self, label: str) -> Any:
        return self._values[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Architecture) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return f"Architecture({self._values!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from_mapping = core_schema.no_info_after_validator_function(
            cls, core_schema.dict_schema(core_schema.str_schema())
        )
        return core_schema.json_or_python_schema(
            json_schema=from_mapping,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_mapping]),
            serialization=core_schema.plain_serializer_function_ser_schema(dict),
        )
