"""A library in the cache that is damaged, foreign or older is never loaded: it is replaced, or torch does the work."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.native import compiling, loading
from nasflow.native import library as native
from nasflow.native.cached import cached_library
from nasflow.native.structs import LAYOUT

CRASH = "#include <signal.h>\n__attribute__((constructor)) static void crash(void) {{ raise({}); }}\n"
OTHER_VERSION = ("nasflow_layout[] = {1,", "nasflow_layout[] = {2,")


@pytest.fixture(scope="module", autouse=True)
def compiled_soon() -> Iterator[None]:
    """Compile without optimization, a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "_FLAGS", ("-O0", *compiling._FLAGS[1:]))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a library."""
    if compiling.find_compiler() is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        cached_library(LAYOUT)
    return folder


@pytest.fixture
def path(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library in a copy of that cache, which this process uses."""
    shutil.copytree(whole, tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [found] = (tmp_path / "cache" / "nasflow" / "native").glob("*.so")
    return found


def record(path: Path) -> Path:
    return path.with_suffix(".sha256")


def sign(path: Path, tried: bool) -> None:
    """Write the record of what is there now."""
    _, *machines = record(path).read_text().split()
    lines = [hashlib.sha256(path.read_bytes()).hexdigest(), *(machines if tried else ())]
    record(path).write_text("\n".join(lines))


def change(path: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Put a library there that is compiled from a changed kernels.c, in place of the one that is there."""
    with monkeypatch.context() as patch:
        changed_source(patch, *changes)
        compiling.compile_kernels(str(compiling.find_compiler()), path)


def changed_source(patch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    source = compiling._SOURCE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    patch.setattr(compiling, "_SOURCE", source)


def crash(path: Path, signal: str) -> None:
    """Put a library there that crashes when it is loaded."""
    source = path.parent.parent / "crash.c"
    source.write_text(CRASH.format(signal))
    made = path.with_name("crash.so")
    subprocess.run([str(compiling.find_compiler()), "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    made.replace(path)


def runs(caplog: pytest.LogCaptureFixture, said: str | None) -> bool:
    """Whether kernels are loaded, and compute what they should; one line with `said` was logged, or none."""
    caplog.clear()
    found = native._library.__wrapped__()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (said is not None) and all(said in line and "\n" not in line for line in lines), lines
    if found is not None:
        loading._compute(found)
    return found is not None


def is_whole(path: Path) -> bool:
    """Whether the library and its record are all that is there, and the record is the library's."""
    names = sorted(file.name for file in path.parent.iterdir())
    modes = {file.stat().st_mode & 0o777 for file in (path, record(path))}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return names == sorted((path.name, record(path).name)) and modes == {0o600} and digest in record(path).read_text()


def test_a_whole_library_is_loaded_as_it_is(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = path.stat()
    assert runs(caplog, None) and is_whole(path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("size", [0, 100, 4096, 20_000])
def test_a_truncated_library_is_replaced(path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(path, size)
    assert runs(caplog, "not the file that was written") and is_whole(path)


def test_another_library_under_an_old_digest_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, monkeypatch, ("* 0.39894228f", "* 0.5f"))
    assert runs(caplog, "not the file that was written") and is_whole(path)


@pytest.mark.parametrize("text", [None, "", "nonsense", "\0\0"])
def test_a_library_without_its_digest_is_replaced(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    record(path).unlink() if text is None else record(path).write_text(text)
    assert runs(caplog, "again") and is_whole(path)


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
def test_a_file_that_a_group_can_write_is_replaced(path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    path.with_suffix(suffix).chmod(0o660)
    assert runs(caplog, "other users can write") and is_whole(path)


def test_a_folder_that_a_group_can_write_is_closed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.chmod(0o775)
    assert runs(caplog, None) and is_whole(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_of_another_user_is_replaced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:  # only root can give a file away
        path.unlink()
        path.symlink_to("/bin/sh")
    assert runs(caplog, "another user") and is_whole(path)
    assert path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(("signal", "words"), [("SIGBUS", "Bus error"), ("SIGSEGV", "Segmentation fault")])
def test_a_library_that_crashes_is_replaced(
    path: Path, signal: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    crash(path, signal)
    sign(path, tried=False)
    assert runs(caplog, words) and is_whole(path)


def test_other_structs_are_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, monkeypatch, ("int64_t adds;", "int64_t adds, more;"))
    sign(path, tried=False)
    assert runs(caplog, "layout") and is_whole(path)


def test_other_structs_are_noticed_at_load_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if another machine had tried them: this job does without, and the file is gone for the next one."""
    change(path, monkeypatch, OTHER_VERSION)
    path.chmod(0o600)
    sign(path, tried=True)
    assert not runs(caplog, "layout")
    assert list(path.parent.iterdir()) == []


def test_a_library_is_tried_once_on_each_machine(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sign(path, tried=False)
    written = path.stat().st_mtime_ns
    assert runs(caplog, None) and is_whole(path)
    assert path.stat().st_mtime_ns == written
    assert len(record(path).read_text().split()) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (OTHER_VERSION, "layout"),
        (("double lr,", "double more, lr,"), "layout"),
        (("int64_t nasflow_layout", "int64_t another_layout"), "nasflow_layout"),
        (("#define PANEL", CRASH.format("SIGBUS") + "#define PANEL"), "Bus error"),
        (("return x * cumulative", "return 2 * x * cumulative"), "wrong numbers"),
        (("#define PANEL", "this is no C\n#define PANEL"), "error"),
    ],
    ids=["version", "size", "none", "crash", "numbers", "syntax"],
)
def test_torch_works_where_compiling_again_does_not_help(
    change: tuple[str, str], said: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed_source(monkeypatch, change)
    broken = path.with_name(f"{compiling.fingerprint(str(compiling.find_compiler()))}.so")
    shutil.copy(path, broken)  # without a record
    assert not runs(caplog, said)
    assert is_whole(path)


def test_a_cache_that_cant_be_written_is_done_without(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")  # not even root can make a folder there
    assert not runs(caplog, "/proc/nasflow")
