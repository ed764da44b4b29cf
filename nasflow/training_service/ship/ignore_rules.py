"""The rules in `.nasflowignore` files, which work like git's rules in `.gitignore`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec, RegexPattern

from nasflow.errors import ServiceError

FILE = ".nasflowignore"


@dataclass(frozen=True)
class _Rule:
    pattern: RegexPattern
    folders_only: bool

    def names(self, path: str) -> bool:
        """Whether the pattern matches `path` itself, not a parent: git does not look into folders that are left out."""
        found = self.pattern.regex.search(path) if self.pattern.regex else None
        return found is not None and found.groupdict().get("ps_d") is None  # set by pathspec if a parent matched


class IgnoreRules:
    """The rules of one folder.

    pathspec parses the patterns. It is applied to one entry at a time, from the outside in, as git does; for a whole
    path it decides differently where patterns exclude and re-include the same folders.

    Args:
        lines: patterns, as in a `.gitignore`.
        folder: the folder they are relative to, given relative to the shipped folder; empty for the shipped folder.
    """

    def __init__(self, lines: Iterable[str], folder: str = ""):
        self._prefix = f"{folder}/" if folder else ""
        self._rules = []
        for line in map(str.rstrip, lines):
            # without its trailing slash a pattern can be matched against an entry's name alone
            for pattern in GitIgnoreSpec.from_lines([line.removesuffix("/")]).patterns:
                if isinstance(pattern, RegexPattern) and pattern.include is not None:
                    self._rules.append(_Rule(pattern, line.endswith("/")))

    @classmethod
    def read(cls, file: Path, folder: str) -> "IgnoreRules":
        """Read the rules in a file.

        Raises:
            ServiceError: the file can't be read or holds an invalid pattern.
        """
        try:
            return cls(file.read_text().splitlines(), folder)
        except (OSError, ValueError) as error:
            raise ServiceError(f"{file}: {error}; it should hold patterns as a .gitignore does") from None

    def left_out(self, path: str, is_folder: bool) -> bool | None:
        """Whether an entry is left out, by the last rule that names it; None if none does."""
        inside = path.removeprefix(self._prefix)
        named = (rule for rule in reversed(self._rules) if is_folder or not rule.folders_only)
        return next((rule.pattern.include for rule in named if rule.names(inside)), None)
