"""The comparison before the first step catches changes for the worse, and nothing else."""

from pathlib import Path

import pytest

from tests.sabotage.changes import CHANGES, Change
from tests.sabotage.command import ROOT, compared, copied

pytestmark = pytest.mark.long

CAUGHT = (
    "a parameter's second gradient is dropped",
    "pointwise: segments in another order",
    "layer norm: no bias",
)


def test_the_code_as_it_is_agrees(tmp_path: Path) -> None:
    assert not compared(copied(tmp_path, None))


@pytest.mark.parametrize("name", CAUGHT)
def test_a_change_is_caught(name: str, tmp_path: Path) -> None:
    [change] = [change for change in CHANGES if change.name == name]
    assert "merged it does not compute what it does by itself" in compared(copied(tmp_path, change))


def test_every_change_finds_its_text(tmp_path: Path) -> None:
    copied(tmp_path, None)
    for change in CHANGES:
        change.apply(tmp_path)
        (tmp_path / change.file).write_text((ROOT / change.file).read_text())
    gone = Change("gone", CHANGES[0].file, "there is no such text", "")
    with pytest.raises(ValueError, match="has its text 0 times"):
        gone.apply(tmp_path)
