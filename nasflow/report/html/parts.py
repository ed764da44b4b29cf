"""Pieces of the page: tables, pictures, and a config without secrets. The templates escape all text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from markupsafe import Markup

from nasflow.config.search import SearchConfig
from nasflow.config.secret.secret_url import is_secret_key, without_passwords
from nasflow.report.html.data import Figure
from nasflow.report.html.rendering import macro
from nasflow.report.model.drawing import Picture
from nasflow.trial import Trial

_HIDDEN = "***"


@dataclass(frozen=True)
class Section:
    """A part of the page: HTML and figures, in the order in which they are shown."""

    title: str
    parts: Sequence[Markup | Figure]

    @property
    def anchor(self) -> str:
        """The id that links to the section use."""
        return self.title.lower().replace(" ", "-")


def paragraph(text: str, kind: str = "") -> Markup:
    """Return a paragraph of plain text with the CSS class `kind`."""
    return macro("paragraph", text, kind)


def heading(text: str) -> Markup:
    """Return a heading within a section."""
    return macro("heading", text)


def folded(summary: str, content: Markup) -> Markup:
    """Return content that is hidden until the reader opens it."""
    return macro("folded", summary, content)


def table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a table of rows with equal keys, which become its head. Columns without any value are left out."""
    if not rows:
        return Markup()
    present = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    return macro("table", rows, {name: _kind([row[name] for row in rows]) for name in present})


def models(drawn: Sequence[tuple[Trial, Picture]]) -> Markup:
    """Return the choices and the model of each trial."""
    return macro("models", drawn)


def config_yaml(config: SearchConfig) -> str:
    """Return the config as YAML, without the store's URL and anything that looks like a secret."""
    values = _without_secrets(config.model_dump(mode="json", exclude={"store"}, exclude_none=True))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def _without_secrets(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, key) for item in value]
    if isinstance(value, str):
        return _HIDDEN if is_secret_key(key) else without_passwords(value)
    return value


def _kind(values: Sequence[Any]) -> str:
    """The CSS class of a column: `number` (aligned to the right), `words` (long texts), or none."""
    if all(isinstance(value, int | float) or value is None for value in values):
        return "number"
    return "words" if max(len(str(value)) for value in values) > 40 else ""
