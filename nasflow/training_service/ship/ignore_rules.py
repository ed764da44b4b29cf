"""What `.nasflowignore` files leave out, by git's rules for `.gitignore`."""

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
        """`path` itself, not a folder around it: of what lies in one that is left out, git asks no more."""
        found = self.pattern.regex.search(path) if self.pattern.regex else None
        return found is not None and found.groupdict().get("ps_d") is None  # pathspec's mark of a folder around it


class IgnoreRules:
    """The rules of one folder.

    pathspec reads the patterns. It is asked about one entry at a time, from the outside in, as git does; asked about a
    whole path, it decides differently where patterns exclude and re-include the same folders.

    Args:
        lines: patterns, as in a `.gitignore`.
        folder: what they are relative to, itself relative to the folder that is shipped; empty for that folder.
    """

    def __init__(self, lines: Iterable[str], folder: str = ""):
        self._prefix = f"{folder}/" if folder else ""
        self._rules = []
        for line in map(str.rstrip, lines):
            # without its last slash a pattern can be matched with an entry's name alone
            for pattern in GitIgnoreSpec.from_lines([line.removesuffix("/")]).patterns:
                if isinstance(pattern, RegexPattern) and pattern.include is not None:
                    self._rules.append(_Rule(pattern, line.endswith("/")))

    @classmethod
    def read(cls, file: Path, folder: str) -> "IgnoreRules":
        """The rules in a file.

        Raises:
            ServiceError: it can't be read, or holds what is no pattern.
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
