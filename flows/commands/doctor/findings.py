"""What `nasflow doctor` finds, one line a check."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text

from nasflow.errors import UserError

from ...server.errors import PrefectApiError


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at.
        saw: what there is.
        mend: what to do; empty if nothing has to be done, or `saw` says it, too.
    """

    check: str
    level: Level
    saw: str
    mend: str = ""


def examined(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `look` finds. What breaks the looking itself is a finding, too."""
    found: list[Finding] = []
    try:
        for finding in look():
            found.append(finding)
    except PrefectApiError as error:
        found.append(Finding(check, Level.BROKEN, error.saw, error.mend))
    except UserError as error:
        found.append(Finding(check, Level.BROKEN, str(error)))
    except Exception as error:
        words = " ".join(str(error).split())
        found.append(Finding(check, Level.BROKEN, f"can't be looked at: {type(error).__name__}: {words}"))
    return found


def findings_lines(findings: Iterable[Finding]) -> list[Text]:
    """A line each for a terminal."""
    styles = {Level.OK: "green", Level.WARNING: "yellow", Level.BROKEN: "red"}
    return [
        Text.assemble(
            (f"{finding.level:<8} ", styles[finding.level]),
            f"{finding.check:<10} {finding.saw}",
            (f"; {finding.mend}" if finding.mend else "", "bold"),
        )
        for finding in findings
    ]


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The same for a program."""
    return [asdict(finding) for finding in findings]
