"""How checks show problems."""

from collections.abc import Sequence
from typing import Protocol

from rich.text import Text

from nasflow.training_service.problem import Problem

from ..console import console

_STYLES = {"error": "red", "warning": "yellow"}


class Checked(Protocol):
    """The result of checking one host or service."""

    @property
    def problems(self) -> list[Problem]: ...  # noqa: D102

    @property
    def in_order(self) -> bool: ...  # noqa: D102


def problems_json(checked: Checked) -> list[dict[str, str]]:
    """Return the problems for a program."""
    return [{"level": problem.level, "text": problem.text} for problem in checked.problems]


def print_problems(checked: Sequence[Checked], what: str) -> None:
    """Print one line per problem, with how to mend it, and a summary, which calls them `what`."""
    for problem in (problem for each in checked for problem in each.problems):
        line = Text(f"{problem.level}: {problem.text}", style=_STYLES[problem.level])
        console().print(line, soft_wrap=True)  # commands in it stay whole
    good = sum(each.in_order for each in checked)
    console().print(Text(f"{good} of {len(checked)} {what} can run jobs"), soft_wrap=True)
