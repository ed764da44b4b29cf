"""Damaged input is read or refused in a sentence; and the fuzzer sees what is not."""

import os
import signal
from pathlib import Path

import pytest

from nasflow.errors import ConfigError
from tests.fuzz import watch
from tests.fuzz.campaign import campaign, draw
from tests.fuzz.command import findings, summary
from tests.fuzz.shrink import judge, shrink
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

SEED, CASES = 9, 150
ELSEWHERE = Path("/tmp/nasflow-fuzz-elsewhere")


def read(data: bytes, folder: Path) -> int:
    """Read `help` with some mistakes."""
    (folder / "copy").write_bytes(data)
    match data:
        case b"raise":
            raise KeyError(data)
        case b"hang":
            while True:
                pass
        case b"outside":
            ELSEWHERE.write_bytes(data)
        case b"beside":
            try:
                (folder.parent / "beside").mkdir()
            except OSError:
                return 1
        case b"program":
            os.system("true")
        case b"memory":
            return len(bytearray(600 * 2**20))
        case b"end":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"lines":
            raise ConfigError("one\ntwo")
        case b"help":
            return 1
    if b"bug" in data:
        raise IndexError(data)
    raise ConfigError("it should read 'help'")


TARGET = Target("help", [b"help"], read, (ConfigError,), [b"bug"])


def test_what_is_drawn_follows_from_the_seed() -> None:
    for target in TARGETS:
        drawn = [draw(target, SEED, number) for number in range(20)]
        assert drawn == [draw(target, SEED, number) for number in range(20)]
        assert drawn != [draw(target, SEED + 1, number) for number in range(20)]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"raise", "KeyError in test_fuzz.py:"),
        (b"hang", "hang"),
        (b"outside", "PermissionError in watch.py:"),
        (b"beside", "outside"),
        (b"program", "PermissionError in watch.py:"),
        (b"memory", "memory"),
        (b"end", "the process ended with SIGKILL"),
        (b"lines", "sentence"),
        (b"help", ""),
        (b"else", ""),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
def test_what_is_not_refused_in_a_sentence_is_seen(monkeypatch: pytest.MonkeyPatch, data: bytes, kind: str) -> None:
    if kind == "hang":
        monkeypatch.setattr(watch, "SECONDS", 0.1)
    outcome = judge(TARGET, data)
    assert outcome.kind.startswith(kind) if kind else not outcome.finding, outcome
    assert outcome.accepted is (data == b"help")
    assert not ELSEWHERE.exists()


def test_a_finding_is_shrunk_and_shown(tmp_path: Path) -> None:
    tallies = campaign([TARGET], SEED, 60)
    [(kind, (data, _))] = [found for found in tallies[0].findings.items() if found[0].startswith("IndexError")]
    assert shrink(TARGET, data, kind) == b"bug"
    text = findings(tallies, tmp_path, seconds=10.0)
    assert "IndexError" in text
    assert "input: b'bug'" in text
    assert f"{tallies[0].found:10}" in summary(tallies)


def test_damaged_input_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    tallies = campaign(TARGETS, SEED, CASES)
    assert all(tally.cases == CASES and tally.accepted and tally.refused for tally in tallies), summary(tallies)
    assert not any(tally.findings for tally in tallies), findings(tallies, tmp_path, seconds=5.0)
