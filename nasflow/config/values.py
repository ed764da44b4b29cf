"""Values in the config that may be searched, and the titles of its sections in forms."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PositiveInt,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_SPELLINGS = {
    **{"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "gb": "GB", "ssh": "SSH", "url": "URL"},
    **{"openpai": "OpenPAI", "dlts": "DLTS", "dlc": "DLC", "azureml": "Azure ML"},
}


def _field_title(name: str, _field: Any) -> str:
    """Return `gpus_per_job` as "GPUs per job"."""
    words = [_SPELLINGS.get(word, word) for word in name.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def _section_title(section: type) -> str:
    """Return `SshServiceConfig` as "SSH service"."""
    words = re.findall(r"[A-Z][a-z]*", section.__name__.partition("[")[0].removesuffix("Config"))
    return _field_title("_".join(words).lower(), None)


STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    validate_default=True,
    allow_inf_nan=False,  # JSON has no such numbers, and text may be read as one
    field_title_generator=_field_title,
    model_title_generator=_section_title,
)


def _kinds(annotation: Any) -> list[Any]:
    """Return the types that occur in a type annotation, without those of the sections in it."""
    return [annotation, *(kind for argument in get_args(annotation) for kind in _kinds(argument))]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Section(BaseModel):
    """Base of every part of the config: unknown keys are refused, values can't be changed after validation."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _refuse_booleans_for_numbers(cls, values: Any) -> Any:
        """Refuse `true` where only numbers fit, which pydantic reads as 1."""
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in cls.model_fields and any(isinstance(item, bool) for item in _items(value)):
                kinds = _kinds(cls.model_fields[key].annotation)
                if (int in kinds or float in kinds) and not (bool in kinds or Any in kinds):
                    raise ValueError(f"'{key}' is true or false; give a number")
        return values

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with these values, validated as those of a new section. Raises pydantic's ValidationError.

        Values that were derived from others are left out, because they may follow from new ones.
        """
        copied = super().model_copy(deep=deep)
        return type(self).model_validate({**copied._given(), **update}) if update else copied

    def replaced(self, **values: Any) -> Self:
        """Return a copy with these values, which are known to be valid and are not validated: this is fast."""
        return super().model_copy(update=values)

    def derived(self, **values: Any) -> Self:
        """Return a copy with these values, which follow from others: not validated, and not counted as given."""
        copied = self.replaced(**values)
        copied.model_fields_set.difference_update(name for name in values if getattr(self, name) != values[name])
        return copied

    def as_given(self) -> Self:
        """Return a copy with defaults in place of what `derived` has set."""
        return type(self).model_validate(self._given())

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return pydantic's schema, with `kind` required: it has a default in Python but must be given in a file."""
        made = handler(schema)
        body = handler.resolve_ref_schema(made)
        if "kind" in body.get("properties", {}):
            body["required"] = list(dict.fromkeys([*body.get("required", []), "kind"]))
        return made


class SearchedValue(Section):
    """Base of what may be given instead of a plain value."""


class FloatRange(SearchedValue):
    """Search a number in `[low, high]`, evenly in its logarithm with `log: true`."""

    float: Annotated[tuple[float, float], Field(title="Range", description="lowest and highest number")]
    log: bool = Field(default=False, title="Logarithmic", description="evenly in the logarithm")


class IntRange(SearchedValue):
    """Search a whole number in `[low, high]`, both included."""

    int: Annotated[tuple[int, int], Field(title="Range", description="lowest and highest whole number")]
    log: bool = Field(default=False, title="Logarithmic", description="evenly in the logarithm")
    step: PositiveInt = Field(default=1, description="between two neighbours")


T = TypeVar("T")


class Options(SearchedValue, Generic[T]):
    """Search one of a list of values."""

    pick: list[T] = Field(min_length=1, title="Options", description="one of these")


def searched_tag(value: Any) -> str:
    """Return the member of a searched union that a value is meant as, so that an error names only that one."""
    for key, kind in (("float", FloatRange), ("int", IntRange), ("pick", Options)):
        if isinstance(value, kind) or (isinstance(value, dict) and key in value):
            return key
    return "value"


_FloatTag = Annotated[FloatRange, Tag("float")]
_IntTag = Annotated[IntRange, Tag("int")]
_Value = Field(title="Value")
SearchedTags = Discriminator(searched_tag)
SearchedFloat = Annotated[
    Annotated[float, _Value, Tag("value")] | _FloatTag | _IntTag | Annotated[Options[float], Tag("pick")], SearchedTags
]
SearchedInt = Annotated[
    Annotated[int, _Value, Tag("value")] | _IntTag | Annotated[Options[int], Tag("pick")], SearchedTags
]
SearchedBool = Annotated[Annotated[bool, _Value, Tag("value")] | Annotated[Options[bool], Tag("pick")], SearchedTags]
OptionalFloat = Annotated[SearchedFloat, Field(title="Number")] | None
OptionalInt = Annotated[SearchedInt, Field(title="Number")] | None
OptionalBool = Annotated[SearchedBool, Field(title="Yes or no")] | None
