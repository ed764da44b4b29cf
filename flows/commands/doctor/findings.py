"""The findings of `nasflow doctor`, one line each."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text

from nasflow.errors import UserError

from ...server.errors import PrefectApiError


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: name of what was checked.
        level: its severity.
        saw: what was found.
        mend: how to fix it; empty if nothing has to be done, or if `saw` says it.
    """

    check: str
    level: Level
    saw: str
    mend: str = ""


def examined(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of `look`. An error during the check is a finding, too."""
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
        found.append(Finding(check, Level.BROKEN, f"can't be checked: {type(error).__name__}: {words}"))
    return found


def findings_lines(findings: Iterable[Finding]) -> list[Text]:
    """Return one line per finding for a terminal."""
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
    """Return the findings for a program."""
    return [asdict(finding) for finding in findings]
