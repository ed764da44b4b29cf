"""Text that every store, terminal and JSON parser accepts."""

from typing import Annotated, Any

from pydantic import BeforeValidator


def clean_text(text: str) -> str:
    r"""Return `text` with NUL characters and lone surrogates escaped: `\x00`, `\udce9`.

    Exceptions and logs may contain both: a file name that is not UTF-8 has surrogates. PostgreSQL refuses the one,
    UTF-8 and so JSON parsers, SQLite and terminals the other.
    """
    return text.replace("\0", r"\x00").encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = 10_000) -> str:
    """Return `text` without its middle if it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def error_message(error: BaseException) -> str:
    """Return an error's type and text, clean and of bounded length. It may be a user's own, which can't be printed."""
    try:
        text = str(error)
    except (Exception, SystemExit) as second:
        text = f"<its text could not be made: {type(second).__name__}>"
    return clean_text(shortened(f"{type(error).__name__}: {text}"))


def _clean(value: Any) -> Any:
    return clean_text(value) if isinstance(value, str) else value


CleanText = Annotated[str, BeforeValidator(_clean)]
"""A field of a model, cleaned when the model is made or read."""
