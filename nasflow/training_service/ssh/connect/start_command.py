"""The command that starts a program on a host: the user's login shell there runs it, whichever that is."""

import shlex
import string
from collections.abc import Sequence

_WITHOUT_GROUPS = {"csh", "tcsh", "fish"}  # they have no `{ ...; } && ...`
_SAFE = frozenset(f"{string.ascii_letters}{string.digits}".encode())


def start_command(argv: Sequence[str], env_setup: str = "", shell: str = "sh") -> str:
    """Return the command for a login shell.

    Args:
        argv: program and arguments; nothing is expanded but a leading `~/`.
        env_setup: shell commands that come first. The login shell runs them, or bash if that is of another kind.
        shell: the login shell's name; only needed with `env_setup`.
    """
    command = f"exec {' '.join(map(_quoted, argv))}"
    if not env_setup:
        return command
    command = f"{{ {env_setup}\n}} && {command}"
    return _in_bash(command) if shell in _WITHOUT_GROUPS else command


def _in_bash(script: str) -> str:
    """Return a command that runs a script in bash. It has no character that shells read in different ways."""
    safe = "".join(chr(byte) if byte in _SAFE else rf"\0{byte:03o}" for byte in script.encode())
    return f'exec bash -c \'eval "$(printf %b "{safe}")"\''


def _quoted(word: str) -> str:
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)
