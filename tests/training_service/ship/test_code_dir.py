"""What is shipped of a code folder and of nasflow, its hash, and the limits."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nasflow
from nasflow.config.services.common import CodeConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ship import code_dir
from nasflow.training_service.ship.code_archive import unpack
from nasflow.training_service.ship.code_dir import CodeArchive, collect, nasflow_package

Tree = dict[str, tuple[bytes, bool]]
# what POSIX allows as a name, UTF-8 or not; none of it is left out by default
names = st.binary(min_size=1, max_size=4).map(lambda name: "n" + os.fsdecode(name.translate(None, b"/\0")))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.tuples(st.binary(max_size=40), st.booleans())
trees = st.dictionaries(paths, contents, max_size=6).map(
    lambda tree: {path: file for path, file in tree.items() if not any(each.startswith(f"{path}/") for each in tree)}
)


@pytest.fixture
def code(tmp_path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def grow(folder: Path, tree: Tree) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, (content, executable) in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(0o755 if executable else 0o644)
    return folder


def touch(folder: Path, *paths: str) -> None:
    grow(folder, dict.fromkeys(paths, (b"", False)))


def seen(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file()
    }


def packed(archive: CodeArchive) -> bytes:
    stream = io.BytesIO()
    archive.write(stream)
    return stream.getvalue()


def shipped(folder: Path, **limits) -> list[str]:
    return [file.path for file in collect(folder, CodeConfig(**limits)).files]


@settings(max_examples=50, deadline=None)
@given(trees)
def test_what_is_packed_is_unpacked(tmp_path_factory, tree):
    base = tmp_path_factory.mktemp("trip")
    archive = collect(grow(base, tree), CodeConfig())
    place = unpack(io.BytesIO(packed(archive)), base.with_name(f"{base.name}-host"), archive.digest)
    assert place.name == archive.digest
    assert seen(place) == tree
    assert collect(place, CodeConfig()).digest == archive.digest


@settings(max_examples=50, deadline=None)
@given(trees.filter(bool), st.sampled_from(["content", "executable", "name", "folder", "gone"]), st.data())
def test_the_hash_changes_with_the_content(tmp_path_factory, tree, change, data):
    path = data.draw(st.sampled_from(sorted(tree)))
    content, executable = tree[path]
    other = {each: file for each, file in tree.items() if each != path}
    match change:
        case "content":
            other[path] = (content + b"!", executable)
        case "executable":
            other[path] = (content, not executable)
        case "name":
            other[f"{path}~new"] = (content, executable)
        case "folder":
            other[f"~new/{path}"] = (content, executable)
    base = tmp_path_factory.mktemp("hash")
    before, after = (collect(grow(base / str(i), each), CodeConfig()).digest for i, each in enumerate((tree, other)))
    assert before != after


def test_neither_times_nor_owners_nor_order_are_in_the_hash_or_the_archive(code, tmp_path, monkeypatch):
    tree = {"b/x.py": (b"x", False), "a.sh": (b"y", True), "b.py": (b"z", False)}
    grow(code, tree)
    later = grow(tmp_path / "later", dict(reversed(tree.items())))
    os.utime(later / "a.sh", (1, 1))
    (later / "b.py").chmod(0o600)
    one, other = collect(code, CodeConfig()), collect(later, CodeConfig())
    assert one.digest == other.digest
    before = packed(one)
    monkeypatch.setattr("time.time", lambda: 1.0)  # what gzip would write into its header
    assert packed(one) == packed(other) == before
    with tarfile.open(fileobj=io.BytesIO(packed(one))) as tar:
        assert [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in tar] == [
            ("a.sh", 0o755, 0, 0, ""),
            ("b.py", 0o644, 0, 0, ""),
            ("b/x.py", 0o644, 0, 0, ""),
        ]


def test_histories_caches_environments_and_results_are_left_out(code):
    touch(code, "space.py", "deep/er.py", ".github/ci.yaml", ".git/config", "sub/.git", "x/__pycache__/x.pyc", "y.pyc")
    touch(code, ".venv/pyvenv.cfg", ".venv/bin/python", "envs/mine/pyvenv.cfg", "envs/mine/a.py", "conda/conda-meta/x")
    touch(code, "nasflow-runs/study/jobs/1/job.json", "nasflow.db", "nasflow.db-wal", "web/node_modules/x.js")
    (code / "empty").mkdir()
    os.mkfifo(code / "pipe")
    assert shipped(code) == [".github/ci.yaml", "deep/er.py", "space.py"]
    (code / ".nasflowignore").write_text("!nasflow.db\n.github\n.nasflowignore\n!.git\n")
    assert shipped(code) == ["deep/er.py", "nasflow.db", "space.py"]


def test_what_usually_holds_secrets_is_left_out(code):
    touch(code, ".env", ".env.local", ".envrc", "server.pem", "deep/tls.key", "id_ed25519", "deep/id_lab")
    touch(code, "space.py", "id_map.py", "id_ed25519.pub", "id_embeddings/net.py", "keys.py", "environment.py")
    kept = ["environment.py", "id_ed25519.pub", "id_embeddings/net.py", "id_map.py", "keys.py", "space.py"]
    assert shipped(code) == kept
    (code / ".nasflowignore").write_text("!.env\n!id_lab\n!*.key\n.nasflowignore\n")
    assert shipped(code) == sorted([*kept, ".env", "deep/id_lab", "deep/tls.key"])


def test_the_callers_own_folders_are_left_out(code):
    touch(code, "space.py", "runs/study/jobs/1/job.json", "runs/note.txt")
    (code / "link").symlink_to("runs/study")
    archive = collect(code, CodeConfig(), leave_out=[code / "runs" / "study", code / "absent", code])
    assert [file.path for file in archive.files] == ["runs/note.txt", "space.py"]


def test_ignored_folders_are_not_looked_into(code):
    touch(code, "space.py", "data/a.bin")
    (code / "data" / ".nasflowignore").write_bytes(b"\xff")  # would be an error
    (code / ".nasflowignore").write_text("data/\n")
    assert shipped(code) == [".nasflowignore", "space.py"]


def test_links_are_followed(code, tmp_path):
    outside = grow(tmp_path / "outside", {"data/one.csv": (b"1", False), "tool.sh": (b"#!", True)})
    grow(code, {"lib/a.py": (b"a", False)})
    (code / "same.py").symlink_to("lib/a.py")
    (code / "twin").symlink_to("lib")
    (code / "data").symlink_to(outside / "data")
    (code / "tool.sh").symlink_to(outside / "tool.sh")
    archive = collect(code, CodeConfig())
    place = unpack(io.BytesIO(packed(archive)), tmp_path / "host", archive.digest)
    assert seen(place) == {
        "lib/a.py": (b"a", False),
        "same.py": (b"a", False),
        "twin/a.py": (b"a", False),
        "data/one.csv": (b"1", False),
        "tool.sh": (b"#!", True),
    }
    assert not any(path.is_symlink() for path in place.rglob("*"))
    (code / ".nasflowignore").write_text("data/\n")  # a rule for folders is one for links to folders
    assert "data/one.csv" not in shipped(code)


def test_links_in_circles_and_to_nowhere_are_left_out(code):
    touch(code, "x/a.py", "y/b.py")
    for link, target in [
        ("self", "self"),
        ("gone", "nothing"),
        ("x/up", ".."),
        ("x/root", "/"),
        ("x/to_y", "../y"),
        ("y/to_x", "../x"),
        ("here", "."),
    ]:
        (code / link).symlink_to(target)
    assert shipped(code) == ["x/a.py", "x/to_y/b.py", "y/b.py", "y/to_x/a.py"]


def test_too_many_files(code):
    touch(code, "space.py", *(f"data/train/{i}.png" for i in range(60)), *(f"logs/{i}" for i in range(30)))
    touch(code, *(f"few{i}/x" for i in range(5)))
    assert len(shipped(code, max_files=96)) == 96
    with pytest.raises(ServiceError) as refused:
        shipped(code, max_files=95)
    assert str(refused.value) == (
        f"training_service.code: there are 96 files to ship in {code}, more than 95, most of it in data/ (60), "
        f"logs/ (30), space.py (1), few0/ (1); name what hosts don't need in {code}/.nasflowignore, or raise "
        "training_service.code.max_files"
    )
    (code / ".nasflowignore").write_text("data/\n")
    assert len(shipped(code, max_files=95)) == 37


def test_too_large(code):
    grow(code, {"all/a/1.bin": (bytes(700_000), False), "all/b.bin": (bytes(500_000), False), "x.py": (b"x", False)})
    assert len(shipped(code, max_megabytes=1.3)) == 3
    with pytest.raises(ServiceError) as refused:
        shipped(code, max_megabytes=1.2)
    assert str(refused.value) == (
        f"training_service.code: there are 1.2 MB to ship in {code}, more than 1.2 MB, most of it in all/a/ (0.7 MB), "
        f"all/b.bin (0.5 MB); name what hosts don't need in {code}/.nasflowignore, or raise "
        "training_service.code.max_megabytes"
    )


def test_a_huge_folder_is_looked_at_for_a_short_while_only(code, monkeypatch):
    touch(code, *(f"{i % 10}/{i}" for i in range(100)))
    monkeypatch.setattr(code_dir, "_LOOK_ON", 0.0)
    with pytest.raises(ServiceError, match=r"there are at least \d+ files to ship") as refused:
        shipped(code, max_files=20)
    counted = int(re.search(r"at least (\d+) files", str(refused.value))[1])
    assert 20 < counted < 40


def test_what_can_not_be_read_is_named(code, tmp_path):
    with pytest.raises(
        ServiceError, match=rf"can't read {tmp_path / 'nowhere'}, which is to be shipped \(No such file"
    ):
        collect(tmp_path / "nowhere", CodeConfig())
    touch(code, "space.py")
    archive = collect(code, CodeConfig())
    (code / "space.py").unlink()
    with pytest.raises(ServiceError, match=rf"can't read {code / 'space.py'}, .*; make it readable or name it in"):
        packed(archive)


# --- nasflow itself ------------------------------------------------------------------------------------------------


def imported_from(folder: Path, code: str) -> str:
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nasflow_works_where_it_was_unpacked(tmp_path):
    """On Python's path it is found before any other, and the runner and the host's programs are there."""
    archive = nasflow_package()
    paths = [file.path for file in archive.files]
    assert "nasflow/training/runner.py" in paths
    assert "nasflow/__init__.py" in paths
    assert "nasflow/native/kernels.c" in paths
    assert {Path(path).suffix for path in paths} == {".py", ".c"}
    assert not [path for path in paths if path.startswith("nasflow/flows/")]
    place = unpack(io.BytesIO(packed(archive)), tmp_path, archive.digest)
    modules = "nasflow.job.spec as s, nasflow.training.runner, nasflow.training_service.local.service"
    assert imported_from(place, f"import {modules}; print(s.__file__)") == str(place / "nasflow/job/spec.py")


def test_an_installed_nasflow_is_the_same_as_an_editable_one(tmp_path):
    """An installed one has its flows inside, and compiled files."""
    installed = tmp_path / "site-packages"
    here = Path(nasflow.__file__).parent
    shutil.copytree(here, installed / "nasflow", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        here.parent / "flows", installed / "nasflow" / "flows", ignore=shutil.ignore_patterns("__pycache__")
    )
    touch(installed, "nasflow/__pycache__/config.cpython-311.pyc", "nasflow-0.1.dist-info/METADATA")
    code = "from nasflow.training_service.ship import code_dir as c; print(c.__file__, c.nasflow_package().digest)"
    file, digest = imported_from(installed, code).split()
    assert Path(file).is_relative_to(installed)
    assert digest == nasflow_package().digest


def test_a_zipped_nasflow_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "nasflow.zip", "w") as zipped:
        for file in nasflow_package().files:
            zipped.write(file.source, file.path)
    code = (
        "import sys; sys.path.insert(0, 'nasflow.zip')\n"
        "from nasflow.errors import ServiceError\n"
        "from nasflow.training_service.ship.code_dir import nasflow_package\n"
        "try: nasflow_package()\n"
        "except ServiceError as error: print(error)"
    )
    assert "can't read" in imported_from(tmp_path, code)
