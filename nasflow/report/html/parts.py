"""Pieces of HTML: tables, facts, a config that tells no secret. All words are escaped here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import yaml

from nasflow.config.search import SearchConfig
from nasflow.report.html.data import Figure
from nasflow.report.text import shown

_SECRET_KEY = re.compile(r"pass(word|phrase|wd)?$|secret|token|api_?key|credential", re.IGNORECASE)
_USER_INFO = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_HIDDEN = "***"


@dataclass(frozen=True)
class Section:
    """A part of the page: HTML and figures in their order."""

    title: str
    parts: Sequence[str | Figure]

    @property
    def anchor(self) -> str:
        """What a link to it names."""
        return self.title.lower().replace(" ", "-")


def paragraph(text: str, kind: str = "") -> str:
    """One of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """One within a section."""
    return f"<h3>{escape(text)}</h3>"


def table(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> str:
    """Rows with equal keys, which are its head; numbers stand to the right. Columns without any value are left out."""
    if not rows:
        return ""
    present = [name for name in names or rows[0] if any(row[name] not in (None, "") for row in rows)]
    kinds = {name: _kind([row[name] for row in rows]) for name in present}
    head = "".join(f'<th class="{kinds[name]}">{escape(name)}</th>' for name in present)
    body = "".join(
        "<tr>" + "".join(f'<td class="{kinds[name]}">{escape(shown(row[name]))}</td>' for name in present) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def fact_list(facts: Sequence[tuple[str, str, str]]) -> str:
    """Triples of a name, a value, and what is added in small letters."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in facts
    )
    return f"<dl>{items}</dl>"


def choice_list(architecture: Mapping[str, str]) -> str:
    """An architecture, a chip a choice."""
    chips = (f"<li><b>{escape(label)}</b> {escape(value)}</li>" for label, value in architecture.items())
    return f'<ul class="choices">{"".join(chips)}</ul>'


def config_yaml(config: SearchConfig) -> str:
    """The config as YAML, without the store's URL and whatever looks like a secret."""
    values = _without_secrets(config.model_dump(mode="json", exclude={"store"}, exclude_none=True))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def _without_secrets(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, key) for item in value]
    if isinstance(value, str):
        return _HIDDEN if _SECRET_KEY.search(key) else _USER_INFO.sub(rf"\1:{_HIDDEN}@", value)
    return value


def _kind(values: Sequence[Any]) -> str:
    if all(isinstance(value, int | float) or value is None for value in values):
        return "number"
    return "words" if max(len(str(value)) for value in values) > 40 else ""
