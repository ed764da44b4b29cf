"""Notices a SQLite database on a network file system, where its locks and its write-ahead log can't be relied on."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import psutil

_NETWORKED = {
    *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "coda", "ncpfs"),
    *("beegfs", "glusterfs", "gpfs", "lustre", "ocfs2", "orangefs", "panfs", "pvfs2", "wekafs", "virtiofs"),
}
_NETWORKED_BY_FUSE = {"sshfs", "s3fs", "rclone", "gcsfuse", "glusterfs", "ceph-fuse", "davfs2", "goofys", "juicefs"}


class Mount(Protocol):
    """A mounted file system, as psutil has it."""

    @property
    def mountpoint(self) -> str: ...  # noqa: D102
    @property
    def fstype(self) -> str: ...  # noqa: D102


def network_warning(file: Path) -> tuple[str, str] | None:
    """Return what is wrong with the place of a SQLite database, and how to mend it; None if nothing is."""
    kind = network_file_system(file, psutil.disk_partitions(all=True))
    if kind is None:
        return None
    return (
        f"{file} is on a network file system ({kind}), where SQLite may lose or damage records",
        "put the database on a local disk, or use PostgreSQL",
    )


def network_file_system(file: Path, mounts: Iterable[Mount]) -> str | None:
    """Return the kind of the network file system that a file is on; None if it is on a local one."""
    place = Path(os.path.realpath(file))
    around = [mount for mount in mounts if place.is_relative_to(mount.mountpoint)]
    if not around:
        return None
    kind = max(reversed(around), key=lambda mount: len(mount.mountpoint)).fstype  # the last mounted hides the others
    return kind if kind in _NETWORKED or kind.removeprefix("fuse.") in _NETWORKED_BY_FUSE else None
