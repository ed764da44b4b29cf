"""SQLite on a network file system is noticed."""

import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from nasflow.study.database import store
from nasflow.study.database.network_disk import network_file_system, network_warning


class Mounted(NamedTuple):
    mountpoint: str
    fstype: str


MOUNTS = [
    Mounted("/", "ext4"),
    Mounted("/user", "nfs4"),
    Mounted("/user/me/local", "xfs"),
    Mounted("/far", "fuse.sshfs"),
    Mounted("/over", "cifs"),
    Mounted("/over", "ext4"),
    Mounted("/usb", "fuse.exfat"),
]


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/var/nasflow.db", None),
        ("/user/me/nasflow.db", "nfs4"),
        ("/users/nasflow.db", None),
        ("/user/me/local/nasflow.db", None),
        ("/far/nasflow.db", "fuse.sshfs"),
        ("/over/nasflow.db", None),
        ("/usb/nasflow.db", None),
    ],
)
def test_the_innermost_file_system_counts(file: str, kind: str | None) -> None:
    assert network_file_system(Path(file), MOUNTS) == kind


def test_a_controller_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "nasflow.db"
    assert network_warning(file) is None
    monkeypatch.setattr("psutil.disk_partitions", lambda all: [Mounted(str(tmp_path), "nfs4")])
    with caplog.at_level(logging.WARNING):
        store.Store(f"sqlite:///{file}", create=True).close()
        store.Store(f"sqlite:///{file}").close()
    (line,) = caplog.messages
    assert line.startswith(f"store: {file} is on a network file system (nfs4)") and line.endswith("or use PostgreSQL")
