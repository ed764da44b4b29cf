"""Values in the config that may be searched."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PositiveInt, Tag

STRICT = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Section(BaseModel):
    """Base of every part of the config: unknown keys are refused, values can't be changed after validation."""

    model_config = STRICT


class SearchedValue(Section):
    """Base of what may stand in place of a plain value."""


class FloatRange(SearchedValue):
    """Search a number in `[low, high]`, evenly in its logarithm with `log: true`."""

    float: tuple[float, float]
    log: bool = False


class IntRange(SearchedValue):
    """Search a whole number in `[low, high]`, both included."""

    int: tuple[int, int]
    log: bool = False
    step: PositiveInt = 1


T = TypeVar("T")


class Options(SearchedValue, Generic[T]):
    """Search one of a list of values."""

    pick: list[T] = Field(min_length=1)


def _searched_tag(value: Any) -> str:
    """Which member of a searched union a value is meant as, so that an error speaks of that one alone."""
    for key, kind in (("float", FloatRange), ("int", IntRange), ("pick", Options)):
        if isinstance(value, kind) or (isinstance(value, dict) and key in value):
            return key
    return "value"


_FloatTag = Annotated[FloatRange, Tag("float")]
_IntTag = Annotated[IntRange, Tag("int")]
SearchedTags = Discriminator(_searched_tag)
SearchedFloat = Annotated[
    Annotated[float, Tag("value")] | _FloatTag | _IntTag | Annotated[Options[float], Tag("pick")], SearchedTags
]
SearchedInt = Annotated[Annotated[int, Tag("value")] | _IntTag | Annotated[Options[int], Tag("pick")], SearchedTags]
SearchedBool = Annotated[Annotated[bool, Tag("value")] | Annotated[Options[bool], Tag("pick")], SearchedTags]
