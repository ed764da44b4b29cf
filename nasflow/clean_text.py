"""Text that every store, terminal and JSON parser accepts."""

from typing import Annotated, Any

from pydantic import BeforeValidator


def clean_text(text: str) -> str:
    r"""Return `text` with NUL characters and lone surrogates escaped: `\x00`, `\udce9`.

    Exceptions and logs may contain both: a file name that is not UTF-8 has surrogates. PostgreSQL refuses the one,
    UTF-8 and so JSON parsers, SQLite and terminals the other.
    """
    return text.replace("\0", r"\x00").encode(errors="backslashreplace").decode()


def _clean(value: Any) -> Any:
    return clean_text(value) if isinstance(value, str) else value


CleanText = Annotated[str, BeforeValidator(_clean)]
"""A field of a model, cleaned when the model is made or read."""
