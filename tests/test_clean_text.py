"""Texts of errors that users' code raises."""

import pytest

from nasflow.clean_text import error_message, error_text, shortened


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_without_a_text_keeps_its_type() -> None:
    assert error_message(UnprintableError()) == "UnprintableError: <its text could not be made: ValueError>"
    assert error_text(UnprintableError()).startswith("UnprintableError: ")


@pytest.mark.parametrize("text", ["x\0\udce9" * 1_000_000, "line\n" * 1_000_000])
def test_a_long_error_has_a_short_record(text: str) -> None:
    found = error_text(ValueError(f"begin{text}end"))
    assert len(found) < 60_000
    assert found.startswith("ValueError: begin")
    assert found.endswith("end")
    assert "characters ...]" in found


def test_a_text_is_shortened_in_its_middle() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc [... 1 characters ...] efg"


def test_a_terminal_obeys_no_text_of_an_error() -> None:
    found = error_text(ValueError("\x1b[2J\x1b]0;mine\x07\x9b\x7f\0\udce9, and\ta line\nthe next é"))
    assert found.startswith(
        "ValueError: " + r"\x1b[2J\x1b]0;mine\x07\x9b\x7f\x00\udce9, and" + "\ta line\nthe next é\n"
    )
