"""The Jinja2 templates of the page, in the folder `templates`. They escape everything that is not already HTML."""

from datetime import datetime
from typing import cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nasflow.report.text import shown, value_text


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


_TEMPLATES = Environment(
    loader=PackageLoader("nasflow.report.html"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"minute": _minute, "shown": shown, "value_text": value_text}
_TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


def page(name: str, **values: object) -> str:
    """Render a whole template."""
    return _TEMPLATES.get_template(name).render(values)


def macro(name: str, *values: object) -> Markup:
    """Render one macro of `parts.html`."""
    return cast(Markup, getattr(_TEMPLATES.get_template("parts.html").module, name)(*values))
