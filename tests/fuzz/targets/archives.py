"""Archives of code, as a host unpacks them."""

import gzip
import io
import random
import tarfile
import zlib
from pathlib import Path

from nasflow.training_service.ship.code_archive import ArchiveError, file_digest, tree_digest, unpack
from tests.fuzz.target import Target

_FILES = {"a.py": b"a = 1\n", "sub/b.py": b"", "sub/" + "n" * 150: b"x" * 2000, "é.sh": b"#!/bin/sh\n"}
_BLOCK = 512
_MOST_BYTES = 2**22
_FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "size": (124, 12),
    "kind": (156, 1),
    "link": (157, 100),
    "prefix": (345, 155),
}
_NAMES = (
    b"../x",
    b"/tmp/nasflow-fuzz-evil",
    b"a/../../x",
    b"..",
    b".",
    b"",
    b"a.py",
    b"a.py/x",
    b"\xff\xfe",
    b"a\nb",
    b"a/" * 50,
)
_SIZES = (
    b"00000000000\0",
    b"77777777777\0",
    b"-0000000001\0",
    b"\x80" + b"\xff" * 11,
    b"\xff" * 12,
    b"\xff" * 10 + b"\xfe\0",
    b"zz",
)


def _archive(format: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for name, content in _FILES.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0)


def _digest() -> str:
    def of(content: bytes) -> bytes:
        return file_digest(io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]

    return tree_digest((name, name.endswith(".sh"), of(content)) for name, content in _FILES.items())


_DIGEST = _digest()


def _reshape(rng: random.Random, data: bytes) -> bytes:
    """Change a header, with a checksum that fits, or the order of blocks."""
    try:
        with gzip.open(io.BytesIO(data)) as content:
            tar = bytearray(content.read(_MOST_BYTES))
    except (OSError, EOFError, zlib.error):
        return data
    places = range(0, max(_BLOCK, len(tar) - _BLOCK + 1), _BLOCK)
    headers = [place for place in places if tar[place + 257 : place + 262] == b"ustar"] or [0]
    place = rng.choice(headers)
    block = tar[place : place + _BLOCK].ljust(_BLOCK, b"\0")
    match rng.randrange(4):
        case 0:
            tar[place:place] = tar[place : place + 2 * _BLOCK] * rng.choice((1, 2, 30, 2000))
            return gzip.compress(tar[:_MOST_BYTES], 1, mtime=0)
        case 1:
            other = rng.choice(headers)
            tar[place : place + _BLOCK], tar[other : other + _BLOCK] = tar[other : other + _BLOCK], block
            return gzip.compress(tar, 1, mtime=0)
        case _:
            for _ in range(rng.choice((1, 1, 2))):
                start, length = _FIELDS[field := rng.choice(list(_FIELDS))]
                kinds = [bytes([rng.randrange(256)]), *(bytes([kind]) for kind in b"0123456xgLKSVDMX7\0")]
                values = {"size": _SIZES, "mode": _SIZES, "kind": kinds}.get(field, _NAMES)
                block[start : start + length] = rng.choice(values).ljust(length, b"\0")[:length]
            block[148:156] = b"        "
            block[148:156] = b"%06o\0 " % sum(block)
            tar[place : place + _BLOCK] = block
            return gzip.compress(tar, 1, mtime=0)


def _read(data: bytes, folder: Path) -> int:
    host = folder / "host"
    try:
        place = unpack(io.BytesIO(data), host, _DIGEST)
    except (ArchiveError, OSError):
        assert not list(host.iterdir()), "something was left of an archive that was refused"
        raise
    assert {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()} == set(_FILES)
    return 1


TARGET = Target(
    "code archive",
    [_archive(tarfile.PAX_FORMAT), _archive(tarfile.GNU_FORMAT)],
    _read,
    (ArchiveError, OSError),
    (b"\x1f\x8b\x08\0", b"ustar\x0000", b"\0" * 512, b"11 path=xy\n", b"22 GNU.sparse.size=99\n"),
    _reshape,
)
