"""Reads known hosts as OpenSSH does: a line that can't be read concerns no other host."""

import logging
from functools import cache
from pathlib import Path

from paramiko import SSHException
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect.route import Hop

_LOG = logging.getLogger(__name__)


def load_known_hosts(known: HostKeys, hop: Hop) -> dict[bytes, Path]:
    """Add the keys in a hop's files to `known`, but for those that are revoked there, which are returned.

    Certificates of hosts are not checked here, so a `@cert-authority` makes no host known.

    Raises:
        ServiceError: a file can't be read.
    """
    revoked: dict[bytes, Path] = {}
    entries: list[HostKeyEntry] = []
    for file in hop.known_hosts:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue  # knows nobody
        except OSError as error:
            raise ServiceError(f"{hop.place}: {file} can't be read as known hosts: {error}; mend it") from error
        for number, words in enumerate(map(str.split, lines), 1):
            is_revoked = words[:1] == ["@revoked"]
            if not words or words[0][0] == "#" or (words[0][0] == "@" and not is_revoked):
                continue
            entry = _entry(file, number, words[is_revoked:])
            if entry is not None and is_revoked:
                revoked[entry.key.asbytes()] = file
            elif entry is not None:
                entries.append(entry)
    for entry in entries:
        if entry.key.asbytes() not in revoked:
            for name in entry.hostnames:
                if entry.key.get_name() not in (known.lookup(name) or ()):  # the first one counts
                    known.add(name, entry.key.get_name(), entry.key)
    return revoked


def _entry(file: Path, number: int, words: list[str]) -> HostKeyEntry | None:
    """Return what a line says; None if its kind of key is unknown, or it can't be read."""
    try:
        entry = HostKeyEntry.from_line(" ".join(words), number)
        for name in entry.hostnames if entry is not None else ():
            if name.startswith("|1|"):
                HostKeys.hash_host("", name)  # raises if the name can't be compared with others
        return entry
    except (SSHException, InvalidHostKey, ValueError, AssertionError) as error:
        _warn(file, number, str(error))
        return None


@cache
def _warn(file: Path, number: int, why: str) -> None:
    """Log, once, that a line is skipped."""
    _LOG.warning("%s: line %d is skipped, because its host or key can't be read (%s)", file, number, why)
