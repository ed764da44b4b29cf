"""Unpacking: whole or not at all, nothing but files, nothing outside of the folder."""

import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nasflow.config.services.common import CodeConfig
from nasflow.training_service.ship import code_archive
from nasflow.training_service.ship.code_archive import ArchiveError, unpack
from nasflow.training_service.ship.code_dir import CodeArchive, collect


@pytest.fixture
def archive(tmp_path) -> CodeArchive:
    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "sub" / "a.py").write_text("a = 1\n")
    (tmp_path / "code" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "code" / "run.sh").chmod(0o755)
    return collect(tmp_path / "code", CodeConfig())


@pytest.fixture
def packed(archive) -> bytes:
    stream = io.BytesIO()
    archive.write(stream)
    return stream.getvalue()


def tar(*members: tarfile.TarInfo) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for each in members:
            file.addfile(each, io.BytesIO(bytes(each.size)))
    stream.seek(0)
    return stream


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 3) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size if kind == tarfile.REGTYPE else 0
    return info


def test_only_the_user_can_read_what_is_unpacked(tmp_path):
    (tmp_path / "code").mkdir()
    for name, mode in {"mine": 0o600, "all.py": 0o644, "run.sh": 0o755}.items():
        (tmp_path / "code" / name).touch(mode)
        (tmp_path / "code" / name).chmod(mode)
    archive, stream = collect(tmp_path / "code", CodeConfig()), io.BytesIO()
    archive.write(stream)
    stream.seek(0)
    place = unpack(stream, tmp_path / "host", archive.digest)
    assert place.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in place.iterdir()}
    assert modes == {"mine": 0o600, "all.py": 0o600, "run.sh": 0o700}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([member("../evil")], "'../evil', which leads out of it"),
        ([member("a/../../evil")], "'a/../../evil', which leads out of it"),
        ([member("/tmp/nasflow-evil")], "'/tmp/nasflow-evil', which leads out of it"),
        ([member("ok"), member("out", tarfile.SYMTYPE, "/etc/passwd")], "'out', which is no regular file"),
        ([member("in", tarfile.SYMTYPE, "ok")], "'in', which is no regular file"),
        ([member("up", tarfile.SYMTYPE, ".."), member("up/evil")], "'up', which is no regular file"),
        ([member("hard", tarfile.LNKTYPE, "../../evil")], "'hard', which is no regular file"),
        ([member("null", tarfile.CHRTYPE)], "'null', which is no regular file"),
        ([member("pipe", tarfile.FIFOTYPE)], "'pipe', which is no regular file"),
        ([member("folder", tarfile.DIRTYPE)], "'folder', which is no regular file"),
        ([member("twice"), member("twice")], "damaged: .*File exists"),
        ([member("a"), member("a/b")], "damaged: .*exists|damaged: .*Not a directory"),
        ([member("other")], "not 0123: its files changed"),
        ([], "not 0123: its files changed"),
    ],
    ids=lambda value: (
        "-".join(f"{each.name}.{each.type.decode()}" for each in value) if isinstance(value, list) else ""
    ),
)
def test_archives_of_others_are_refused(tmp_path, members, reason):
    with pytest.raises(ArchiveError, match=reason):
        unpack(tar(*members), tmp_path / "host", "0123")
    assert list(tmp_path.iterdir()) == [tmp_path / "host"]
    assert list((tmp_path / "host").iterdir()) == []
    assert not Path("/tmp/nasflow-evil").exists()


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.5, 0.8])
def test_a_transfer_that_was_cut_is_found_out(tmp_path, archive, packed, share):
    with pytest.raises(ArchiveError):
        unpack(io.BytesIO(packed[: int(share * len(packed))]), tmp_path / "host", archive.digest)
    assert list((tmp_path / "host").iterdir()) == []


def test_flipped_bits_are_found_out(tmp_path, archive, packed):
    """But for those that mean nothing, as the time in gzip's header."""
    unharmed = 0
    for at in range(len(packed)):
        broken = packed[:at] + bytes([packed[at] ^ 0x10]) + packed[at + 1 :]
        try:
            place = unpack(io.BytesIO(broken), tmp_path / str(at), archive.digest)
        except ArchiveError:
            assert list((tmp_path / str(at)).iterdir()) == []
        else:
            assert collect(place, CodeConfig()).digest == archive.digest
            unharmed += 1
    assert unharmed < len(packed) / 2


def test_files_that_changed_after_they_were_hashed(tmp_path, archive):
    (tmp_path / "code" / "run.sh").write_text("#!/bin/bash\n")
    stream = io.BytesIO()
    archive.write(stream)
    stream.seek(0)
    with pytest.raises(ArchiveError, match="its files changed while they were packed"):
        unpack(stream, tmp_path / "host", archive.digest)


def test_what_is_there_already_is_left_alone(tmp_path, archive, packed):
    place = unpack(io.BytesIO(packed), tmp_path / "host", archive.digest)
    (place / "result.txt").touch()
    assert unpack(io.BytesIO(b"not even looked at"), tmp_path / "host", archive.digest) == place
    assert (place / "result.txt").exists()


def test_several_unpack_the_same_at_once(tmp_path, archive, packed):
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: unpack(io.BytesIO(packed), tmp_path / "host", archive.digest), range(24)))
    assert set(places) == {tmp_path / "host" / archive.digest}
    assert list((tmp_path / "host").iterdir()) == [places[0]]
    assert collect(places[0], CodeConfig()).digest == archive.digest


def test_another_was_faster(tmp_path, archive, packed, monkeypatch):
    """Between the look whether it is there and the renaming."""
    make_folder = tempfile.mkdtemp

    def make_folder_late(**options) -> str:
        monkeypatch.setattr(tempfile, "mkdtemp", make_folder)
        unpack(io.BytesIO(packed), tmp_path / "host", archive.digest)
        return make_folder(**options)

    monkeypatch.setattr(tempfile, "mkdtemp", make_folder_late)
    place = unpack(io.BytesIO(packed), tmp_path / "host", archive.digest)
    assert list((tmp_path / "host").iterdir()) == [place]


def test_as_a_program_on_a_host_without_nasflow(tmp_path, archive, packed):
    """Isolated, and without installed packages; its text comes on standard input."""
    (tmp_path / "code.tar.gz").write_bytes(packed)
    program = Path(code_archive.__file__).read_text()

    def run(digest: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", "-", tmp_path / "code.tar.gz", tmp_path / "host", digest]
        return subprocess.run(command, input=program, capture_output=True, text=True, check=False)

    done = run(archive.digest)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'host' / archive.digest}\n", "")
    assert collect(tmp_path / "host" / archive.digest, CodeConfig()).digest == archive.digest
    refused = run("0123")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"the archive holds {archive.digest}, not 0123")
    assert len(refused.stderr.splitlines()) == 1


def header(name: bytes, size: bytes, kind: bytes) -> bytes:
    """One block of a tar, with any bytes for the size."""
    block = bytearray(512)
    block[0 : len(name)], block[124:136], block[156:157] = name, size, kind
    block[100:108], block[257:265] = b"0000644\0", b"ustar  \0"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def number(value: int) -> bytes:
    return b"%011o\0" % value if 0 <= value < 8**11 else (value % 2**96 | 2**95).to_bytes(12, "big")


def zipped(*parts: bytes) -> io.BytesIO:
    return io.BytesIO(gzip.compress(b"".join(parts), compresslevel=1))


PAX = b"11 path=xy\n"
DEEP = b"a/" * 1000 + b"b"
END = bytes(1024)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([(header(b"x", number(len(PAX)), b"x") + PAX.ljust(512, b"\0")) * 5000, END], "recursion"),
        ([(header(b"x", number(3), b"L") + b"abc".ljust(512, b"\0")) * 5000, END], "recursion"),
        ([header(b"x", number(2**33), b"x"), bytes(2**24)], "8,589,934,592 bytes"),
        ([header(b"x", number(2**33), b"L"), bytes(2**24)], "8,589,934,592 bytes"),
        ([header(b"a", number(0), b"0"), header(b"b", number(-512), b"0"), END], "leads back"),
        ([header(b"a", number(2**60), b"0"), bytes(2**16)], "damaged"),
        ([header(b"a", number(3), b"S"), bytes(512)], "'a', which is no regular file"),
        ([header(b"x", number(2001), b"L"), DEEP.ljust(2048, b"\0"), header(b"x", number(0), b"0"), END], "too deep"),
    ],
    ids=["pax headers", "long names", "large pax", "large name", "back", "short", "sparse", "deep"],
)
def test_headers_that_ask_for_too_much(tmp_path, parts, reason):
    with pytest.raises(ArchiveError, match=reason):
        unpack(zipped(*parts), tmp_path / "host", "0123")
    assert list((tmp_path / "host").iterdir()) == []
