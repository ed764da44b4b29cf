"""Read the YAML of a config, with limits, so that no file needs more time or memory than its length suggests."""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from nasflow.clean_text import one_line
from nasflow.config.reading.recordable import MOST_CHARACTERS, MOST_LEVELS, TOO_DEEP, TOO_LONG
from nasflow.errors import ConfigError
from nasflow.system.present_folder import absolute

_MOST_DIGITS = 100
_PLAIN_TAGS = ("null", "bool", "int", "float", "timestamp", "str", "seq", "map")
_TAG = "tag:yaml.org,2002:"
_BOOL = re.compile(r"true$|True$|TRUE$|false$|False$|FALSE$")
_NUMBERS = {
    "int": re.compile(r"[-+]?[0-9]+$|0o[0-7]+$|0x[0-9a-fA-F]+$"),
    "float": re.compile(
        r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
}  # of YAML 1.2; what fits both is an int
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")  # text in YAML 1.1, a number in JSON


def read_yaml(path: Path, *, old: bool = False) -> Any:
    """Return what a YAML file contains: mappings, lists, text, numbers and dates.

    Args:
        path: of the file.
        old: whether it is written for YAML 1.1, in which `yes` is true, `010` is eight, and `4:00` is 240.

    Raises:
        ConfigError: it can't be read, is no UTF-8 text, is no YAML, or is larger than a config may be.
    """
    try:
        with absolute(path).open("rb") as file:
            data = file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(data) > MOST_CHARACTERS:
        raise ConfigError(f"{path}: {TOO_LONG}")
    if b"\0" in data:  # UTF-16 and UTF-32 have them
        raise ConfigError(f"{path}: it is not UTF-8 text, or has NUL bytes; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text ({error}); save it as UTF-8") from None
    try:
        return yaml.load(text, _OldLoader if old else _Loader)  # noqa: S506  # a safe one
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {one_line(_problem(error))}") from None


def _problem(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, without the line itself, which may have a password in it."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    what = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    return what if mark is None else f"{what} in line {mark.line + 1}, column {mark.column + 1}"


class _OldLoader(yaml.SafeLoader):
    """PyYAML's safe loader for what JSON can express and dates. Aliases count as what they repeat.

    Counting is done while nodes are composed: merge keys (`<<`) expand aliases when values are constructed.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._characters = 0
        self._sizes: dict[str | None, int | None] = {}  # characters, by anchor; None within the node itself

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, as PyYAML does, within the limits."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias, anchor, began = isinstance(event, yaml.AliasEvent), event.anchor, self._characters
        size = self._sizes.get(anchor, 0) if is_alias else 1 + len(getattr(event, "value", ""))
        if size is None:
            raise ComposerError(problem=f"{anchor!r} contains itself", problem_mark=event.start_mark)
        self._characters += size
        if self._characters > MOST_CHARACTERS:
            raise ComposerError(problem=TOO_LONG, problem_mark=event.start_mark)
        if self._depth > MOST_LEVELS:
            raise ComposerError(problem=TOO_DEEP, problem_mark=event.start_mark)
        if is_alias:
            return super().compose_node(parent, index)
        self._sizes[anchor] = None
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode):
            _refuse_twice(node)
        self._sizes[anchor] = self._characters - began
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node, as PyYAML does, but with its own error for all that Python refuses."""
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > _MOST_DIGITS:
            text = f"a number of {len(node.value):,} characters; more than {_MOST_DIGITS} are not supported"
            raise ConstructorError(problem=text, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, OverflowError) as error:
            text = f"{str(node.value)[:80]!r} is no {kind} ({error})"
            raise ConstructorError(problem=text, problem_mark=node.start_mark) from error


def _refuse_twice(mapping: yaml.MappingNode) -> None:
    """Raise ConstructorError for a key that a mapping has twice, of which PyYAML would keep the last."""
    known = set()
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if (key.tag, key.value) in known:
                text = f"the key {key.value[:80]!r} is given twice; leave one out"
                raise ConstructorError(problem=text, problem_mark=key.start_mark)
            known.add((key.tag, key.value))


def read_numbers(kind: Any) -> None:
    """Let a loader or dumper take for a number what is one in YAML 1.2, such as `1e-3`, which is text in YAML 1.1."""
    for name, pattern in _NUMBERS.items():
        kind.add_implicit_resolver(_TAG + name, pattern, list("-+.0123456789"))


class _Loader(_OldLoader):
    """Takes for numbers, true and false what YAML 1.2 does: `4:00`, `1_000` and `no` are text, and `010` is ten."""


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_OldLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _PLAIN_TAGS
}
_OldLoader.add_implicit_resolver(_TAG + "float", _EXPONENT, list("-+.0123456789"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) in ("null", "timestamp", "merge")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
read_numbers(_Loader)
_Loader.add_implicit_resolver(_TAG + "bool", _BOOL, list("tTfF"))
_Loader.add_constructor(_TAG + "int", _int)
