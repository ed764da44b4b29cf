"""Error messages for a config, which name the key."""

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from nasflow.clean_text import one_line
from nasflow.config.secret.secret_url import is_secret_key, without_passwords

_SHOWN = 20
_SEARCHED_TAGS = ("value", "float", "int", "pick")  # of unions of a plain and a searched value


def explain(error: ValidationError, root: type[BaseModel], whole: str = "config") -> str:
    """Return the problems of a config of class `root` in one line; unknown keys with the nearest known.

    Args:
        whole: name of what has no key.
    """
    problems = error.errors(include_url=False)
    more = [f"and {len(problems) - _SHOWN:,} more"] if len(problems) > _SHOWN else []
    sentences = (one_line(_sentence(dict(problem), root, whole)) for problem in problems[:_SHOWN])
    return "; ".join([*dict.fromkeys(sentences), *more])


def _sentence(problem: dict[str, Any], root: type[BaseModel], whole: str) -> str:
    """Return one problem, e.g. `evaluator.epoch: unknown key; did you mean 'epochs'?`."""
    kind, context = problem["type"], problem.get("ctx", {})
    *_, (known, _), (below, path) = _walk(problem["loc"], root)
    key = ".".join(path) or whole
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], _keys(known), n=1)
        return f"{key}: unknown key; " + (
            f"did you mean '{near[0]}'?" if near else f"known here: {_list(_keys(known))}"
        )
    if kind == "missing":
        return f"{key}: this key is required"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        kinds = [name for section in below for name in _kinds(section)]
        wrong = f"there is no '{context['tag']}'" if "tag" in context else "this key is required"
        return f"{key}.kind: {wrong}; it should be one of {_list(kinds)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if kind in ("model_attributes_type", "model_type", "dict_type"):
        kinds = [name for section in below for name in _kinds(section)]
        message = "should be a mapping" + (f" with 'kind', one of {_list(kinds)}" if kinds else "")
    given = problem.get("input")
    if isinstance(given, str):
        given = without_passwords(given)
    shown = isinstance(given, str | int | float | bool) and not any(is_secret_key(step) for step in path)
    return f"{key}: {message}" + (f" (got {given!r})" if shown else "")


def _walk(loc: tuple[str | int, ...], root: type[BaseModel]) -> list[tuple[list[type[BaseModel]], list[str]]]:
    """Yield, for the root and every step of a location, the possible sections and the path without unions' tags."""
    sections, path = [root], list[str]()
    places = [(sections, path), (sections, path)]
    for step in loc:
        of_union = len(sections) > 1
        if tagged := [each for each in sections if step == each.__name__ or (of_union and step in _kinds(each))]:
            sections = tagged
            places[-1] = (sections, path)
            continue
        if step in _SEARCHED_TAGS and step not in _keys(places[-2][0]) and any(step in _keys([s]) for s in sections):
            sections = [section for section in sections if step in section.model_fields]
            places[-1] = (sections, path)
            continue
        if step == "value" and path and places[-1][1] == path:
            continue  # the tag of a plain value where another kind is allowed
        if step != "services":  # of several training services, which may be given as a list without that key
            path = [*path, str(step)]
        if isinstance(step, str):
            fields = [section.model_fields[step] for section in sections if step in section.model_fields]
            sections = [model for field in fields for model in _models(field.annotation)]
        places.append((sections, path))
    return places


def _keys(sections: list[type[BaseModel]]) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _list(names: list[Any]) -> str:
    return ", ".join(str(name) for name in names)


def _kinds(section: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(section.model_fields["kind"].annotation) if "kind" in section.model_fields else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that occur in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
