"""`.nasflowignore` means what git would take it to mean."""

import itertools
import os
import random
import subprocess
from pathlib import Path

import pytest

from nasflow.config.services.common import CodeConfig
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


def test_rules_that_an_editor_has_marked_as_utf_8(tree):
    (tree / FILE).write_bytes(b"\xef\xbb\xbfa/\r\n*.o\r\n")
    try:
        expected, found = by_git(tree), shipped(tree)
        assert found == expected
        assert not any(path.startswith("a/") for path in found)
    finally:
        (tree / FILE).unlink()


def test_a_wrong_pattern_names_its_file(tmp_path):
    (tmp_path / FILE).write_text("!\n")
    with pytest.raises(ServiceError, match=rf"^{tmp_path / FILE}: .*; it should hold patterns as a \.gitignore does$"):
        collect(tmp_path, CodeConfig())
    (tmp_path / FILE).write_bytes(b"\xff\xfe\n")
    with pytest.raises(ServiceError, match=rf"^{tmp_path / FILE}: 'utf-8' codec"):
        collect(tmp_path, CodeConfig())


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[z-a]", "pattern '[z-a]'"),
        ("a/[z-a]/b", "pattern 'a/[z-a]/b'"),
        ("!", "pattern '!'"),
        ("a\\", "pattern 'a\\'"),
        ("[z-a]\0\x1b", r"pattern '[z-a]\x00\x1b'"),
        ("x" * 5000, "a pattern of 5,000 characters"),
        ("a/" * 2000 + "b", "a pattern of 4,001 characters"),
    ],
)
def test_a_wrong_pattern_names_its_line(tmp_path, pattern, reason):
    (tmp_path / FILE).write_text(f"*.o\n# fine\n{pattern}\n")
    with pytest.raises(ServiceError) as refused:
        collect(tmp_path, CodeConfig())
    assert str(refused.value).startswith(f"{tmp_path / FILE}: line 3: ")
    assert reason in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.filterwarnings("error")
def test_what_later_versions_of_re_may_take_otherwise_is_no_warning():
    assert IgnoreRules(["[[x]"]).left_out("[", is_folder=False) is True


def test_a_file_of_rules_that_is_none(tmp_path):
    with (tmp_path / FILE).open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ServiceError, match="more than 100,000 bytes"):
        collect(tmp_path, CodeConfig())
    (tmp_path / FILE).write_text("".join(f"{n}\n" for n in range(2001)))
    with pytest.raises(ServiceError, match="more than 2,000 patterns"):
        collect(tmp_path, CodeConfig())
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(ServiceError, match="it is no regular file"):
        collect(tmp_path, CodeConfig())


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*a*b", "a" * 250),
        ("*" * 250 + "b", "a" * 250),
        ("*a" * 60 + "b", "a" * 250),
        ("[ab]*" * 40 + "c", "ab" * 120),
        ("?*" * 40 + "c", "a" * 250),
        ("**/a/" * 20 + "b", "a/" * 200 + "c"),
        ("**/*a*a*a*a*a/" * 12 + "b", f"{'a' * 40}/" * 60 + "c"),
        ("a*" * 20 + "/**/" + "a*" * 20 + "b", f"{'a' * 60}/" * 60 + "c"),
    ],
)
def test_no_pattern_takes_long(pattern, path):
    """For each name, `re` would try the stars again and again."""
    rules = IgnoreRules([pattern])
    for _ in range(500):
        assert rules.left_out(path, is_folder=False) is None


@pytest.mark.parametrize("seed", range(40))
def test_random_wildcards_match_what_git_matches(tmp_path, seed):
    rng = random.Random(seed)
    for _ in range(60):
        place = tmp_path.joinpath(
            *("".join(rng.choices("ab-]!^", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3)))
        )
        if not any(parent.is_file() for parent in place.parents) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    parts = ["a", "b", "-", "*", "**", "?", "[ab]", "[!a]", "[^b-]", "[]a]", "/", "/**/", r"\a", r"\!"]
    lines = ["".join(rng.choices(parts, k=rng.randint(1, 6))) for _ in range(2)]
    (tmp_path / FILE).write_text("".join(f"{line}\n" for line in lines))
    assert shipped(tmp_path) == by_git(tmp_path), lines
