"""What is wrong where jobs are to run, as checks of hosts and of services say it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """A problem of a host or service and its remedy, in one sentence. Jobs can run in spite of a warning."""

    level: Literal["error", "warning"]
    text: str


def problems_of(where: str, errors: Iterable[str], warnings: Iterable[str] = ()) -> list[Problem]:
    """Return the problems of a place, whose name each sentence begins with; errors first."""
    return [
        *(Problem("error", f"{where}: {text}") for text in errors),
        *(Problem("warning", f"{where}: {text}") for text in warnings),
    ]


def in_order(problems: Iterable[Problem]) -> bool:
    """Whether jobs can run there."""
    return not any(problem.level == "error" for problem in problems)
