"""The rules in `.nasflowignore` files, which work like git's rules in `.gitignore`."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec, RegexPattern

from nasflow.clean_text import one_line
from nasflow.errors import ServiceError

FILE = ".nasflowignore"
_MOST_BYTES = 100_000
_MOST_PATTERNS = 2_000
_MOST_CHARACTERS = 1_000  # of a pattern
_STAR = "[^/]*"  # pathspec's regular expression for *


@dataclass(frozen=True)
class _Rule:
    """A pattern. `names` has a regular expression for each name of a path, None for `**`: any number of names."""

    names: tuple[re.Pattern[str] | None, ...]
    leave_out: bool
    folders_only: bool

    def fits(self, path: Sequence[str]) -> bool:
        """Whether the pattern matches a path itself, not a parent: git does not look into folders that are left out.

        What `**` matches grows only while what comes after it does not fit, and never again after a later `**`.
        So a path takes as many steps as it has names times those of the pattern.
        """
        place = at = 0
        skipped, resume = -1, 0
        while place < len(path):
            if at < len(self.names) and self.names[at] is None:
                skipped, resume = at, place
                at += 1
            elif at < len(self.names) and self._matches(at, path[place]):
                place, at = place + 1, at + 1
            elif skipped >= 0:
                resume += 1
                place, at = resume, skipped + 1
            else:
                return False
        return at == len(self.names)

    def _matches(self, at: int, name: str) -> bool:
        pattern = self.names[at]
        return pattern is not None and pattern.match(f"{name}/") is not None


class IgnoreRules:
    """The rules of one folder.

    pathspec parses the names in patterns. Rules are applied to one entry at a time, from the outside in, as git does;
    for a whole path pathspec decides differently where patterns exclude and re-include the same folders.

    Args:
        lines: patterns, as in a `.gitignore`.
        folder: the folder they are relative to, given relative to the shipped folder; empty for the shipped folder.

    Raises:
        ValueError: a pattern is invalid; the message has its line.
    """

    def __init__(self, lines: Iterable[str], folder: str = ""):
        self._prefix = f"{folder}/" if folder else ""
        self._rules = []
        for number, line in enumerate(map(str.rstrip, lines), 1):
            try:
                rule = _rule(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if rule is not None:
                self._rules.append(rule)
            if len(self._rules) > _MOST_PATTERNS:
                raise ValueError(f"it has more than {_MOST_PATTERNS:,} patterns")

    @classmethod
    def read(cls, file: Path, folder: str) -> "IgnoreRules":
        """Read the rules in a file.

        Raises:
            ServiceError: the file can't be read or holds an invalid pattern.
        """
        try:
            if not file.is_file():  # to open a pipe would wait
                raise ValueError("it is no regular file")
            with file.open("rb") as opened:
                data = opened.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            return cls(data.decode("utf-8-sig").splitlines(), folder)
        except (OSError, ValueError) as error:
            raise ServiceError(
                f"{file}: {one_line(str(error))}; it should hold patterns as a .gitignore does"
            ) from None

    def left_out(self, path: str, is_folder: bool) -> bool | None:
        """Whether an entry is left out, by the last rule that names it; None if none does."""
        inside = path.removeprefix(self._prefix).split("/")
        named = (rule for rule in reversed(self._rules) if is_folder or not rule.folders_only)
        return next((rule.leave_out for rule in named if rule.fits(inside)), None)


def _rule(line: str) -> _Rule | None:
    """Return the rule in a line, or None for a comment and for what git ignores. Raises ValueError or re.error."""
    if len(line) > _MOST_CHARACTERS:
        raise ValueError(f"a pattern of {len(line):,} characters, and {_MOST_CHARACTERS:,} are enough")
    pattern = line.removeprefix("!").removesuffix("/")
    if line.startswith("#") or (not pattern and line != "!"):
        return None
    if not pattern:
        raise ValueError("the pattern '!' takes nothing back")
    names = pattern.removeprefix("/").split("/")
    if "/" not in pattern:
        names.insert(0, "**")
    if names[-1] == "**":
        names.append("*")  # what is inside, not the folder itself
    try:
        compiled = [None if name == "**" else _compiled(name) for name in names]
    except (ValueError, re.error) as error:
        raise ValueError(f"the pattern '{line}' is wrong ({error})") from None
    except _NoPatternError:
        return None
    return _Rule(tuple(compiled), not line.startswith("!"), line.endswith("/"))


class _NoPatternError(Exception):
    """A part of a pattern with which git matches nothing, as `[a`."""


def _compiled(name: str) -> re.Pattern[str]:
    """Return a regular expression for a name and a slash, made from pathspec's: it never tries a `*` again.

    The shortest text up to where the next part fits is as good as any longer one, because a later `*` takes the rest.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what `[[` may mean to later versions of re
        [pattern] = GitIgnoreSpec.from_lines([f"/{name}/"]).patterns
        if not isinstance(pattern, RegexPattern) or pattern.regex is None:
            raise _NoPatternError
        first, *rest = pattern.regex.pattern.split(_STAR)
        return re.compile(first + "".join(f"(?>{_STAR}?{part})" for part in rest))
