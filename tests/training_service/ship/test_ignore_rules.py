"""`.nasflowignore` means what git would take it to mean."""

import itertools
import random
import subprocess
from pathlib import Path

import pytest

from nasflow.config.services import CodeConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ship.code_dir import collect
from nasflow.training_service.ship.ignore_rules import FILE, IgnoreRules

NAMES = ("a", "b", "c.py", "d.o")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Folders `a` and `b` and files `c.py` and `d.o` in each, three deep, under git."""
    top = tmp_path_factory.mktemp("tree")
    folders = [top.joinpath(*inside) for depth in range(4) for inside in itertools.product("ab", repeat=depth)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for name in ("c.py", "d.o"):
            (folder / name).touch()
    subprocess.run(["git", "init", "--quiet", top], check=True)
    return top


def by_git(top: Path) -> set[str]:
    command = ["git", "-C", str(top), "ls-files", "-z", "--others", f"--exclude-per-directory={FILE}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")) - {""}


def shipped(top: Path) -> set[str]:
    return {file.path for file in collect(top, CodeConfig()).files}


def pattern(rng: random.Random) -> str:
    words = [*NAMES, "*", "**", "*.py", "?", "[ab]", "[!a]"]
    text = "/".join(rng.choice(words) for _ in range(rng.randint(1, 3)))
    return f"{rng.choice(['', '', '!'])}{rng.choice(['', '', '/'])}{text}{rng.choice(['', '', '/'])}"


@pytest.mark.parametrize("seed", range(60))
def test_random_rules_leave_out_what_git_leaves_out(tree, seed):
    """In the folder and in one of its sub-folders, whose rules come last."""
    rng = random.Random(seed)
    files = [tree / FILE, tree / rng.choice(["a", "b", "a/b"]) / FILE]
    for file in files:
        file.write_text("".join(f"{pattern(rng)}\n" for _ in range(rng.randint(1, 4))))
    try:
        expected, found = by_git(tree), shipped(tree)
        assert found == expected, [file.read_text() for file in files]
    finally:
        for file in files:
            file.unlink()


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["a/**", "!a/b/", "!a/b/c.py"], "a/b/c.py"),
        (["a/*", "!a/b", "a/b/*", "!a/b/d.o"], "a/b/d.o"),
        (["a/", "!a/b/c.py"], ""),  # what lies in a folder that is left out can't be taken back
        (["*", "!*/", "!*.py"], "a/a/c.py a/b/c.py a/c.py"),
        (["# a", "", "a/a", "a/b  ", r"\!x", "d.o"], "a/c.py"),
    ],
    ids=["deep", "step by step", "too late", "kind", "comments"],
)
def test_rules_that_people_write(tree, lines, kept):
    (tree / "a" / FILE).write_text("/*/*/*")  # the innermost rules, and they come last
    (tree / FILE).write_text("\n".join([*lines, FILE, "/b"]))
    try:
        assert sorted(shipped(tree) - {"c.py", "d.o"}) == kept.split()
    finally:
        (tree / FILE).unlink()
        (tree / "a" / FILE).unlink()


def test_no_rule_says_nothing():
    rules = IgnoreRules(["*.o", "!keep.o", "data/"], "sub")
    assert rules.left_out("sub/x.o", is_folder=False) is True
    assert rules.left_out("sub/keep.o", is_folder=False) is False
    assert rules.left_out("sub/x.py", is_folder=False) is None
    assert rules.left_out("sub/data", is_folder=False) is None
    assert rules.left_out("sub/data", is_folder=True) is True


def test_a_wrong_pattern_names_its_file(tmp_path):
    (tmp_path / FILE).write_text("!\n")
    with pytest.raises(ServiceError, match=rf"^{tmp_path / FILE}: .*; it should hold patterns as a \.gitignore does$"):
        collect(tmp_path, CodeConfig())
    (tmp_path / FILE).write_bytes(b"\xff\xfe\n")
    with pytest.raises(ServiceError, match=rf"^{tmp_path / FILE}: 'utf-8' codec"):
        collect(tmp_path, CodeConfig())
