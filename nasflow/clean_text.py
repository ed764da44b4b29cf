"""Text that every store, terminal and JSON parser accepts."""

import re
import traceback
from typing import Annotated, Any

from pydantic import BeforeValidator

_LINE = 600  # characters
_LINES, _SHOWN = 12, 500  # last lines that are shown, and characters of each
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def clean_text(text: str) -> str:
    r"""Return `text` with control characters and lone surrogates escaped: `\x00`, `\x1b`, `\udce9`.

    Exceptions and logs may contain both: a file name that is not UTF-8 has surrogates. PostgreSQL refuses NUL, and a
    terminal obeys what follows an escape character; UTF-8, and so JSON parsers and SQLite, refuse surrogates. Tabs and
    ends of lines stay.
    """
    return _CONTROL.sub(lambda found: rf"\x{ord(found[0]):02x}", text).encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = 10_000) -> str:
    """Return `text` without its middle if it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def one_line(text: str) -> str:
    """Return a text for a message: all but printable characters are escaped, the middle of a long text is left out."""
    if len(text) > _LINE:
        text = f"{text[: _LINE // 2]} ... {text[-_LINE // 2 :]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def error_message(error: BaseException) -> str:
    """Return an error's type and text, clean and of bounded length. It may be a user's own, which can't be printed."""
    try:
        text = str(error)
    except (Exception, SystemExit) as second:
        text = f"<its text could not be made: {type(second).__name__}>"
    return clean_text(shortened(f"{type(error).__name__}: {text}"))


def error_text(error: BaseException) -> str:
    """Return an error as it is recorded: its type and message, then the last lines of its traceback."""
    return "\n".join([error_message(error), last_lines("".join(traceback.format_exception(error)))])


def last_lines(text: str) -> str:
    """Return the last lines of what a program printed, clean and of bounded length."""
    return "\n".join(clean_text(shortened(line, _SHOWN)) for line in text.strip().splitlines()[-_LINES:])


def _clean(value: Any) -> Any:
    return clean_text(value) if isinstance(value, str) else value


CleanText = Annotated[str, BeforeValidator(_clean)]
"""A field of a model, cleaned when the model is made or read."""
