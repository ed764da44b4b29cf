"""Members of trials as text."""

import pytest

from nasflow.report.text import members_text


@pytest.mark.parametrize(
    ("numbers", "of_trial", "name", "text"),
    [
        ([0, 1, 2, 5], 1, "repeat", "0-2, 5"),
        ([0, 3, 6], 3, "fold", "0-2 (fold 1)"),
        ([0, 1, 2, 3, 4, 5], 3, "fold", "0-1 (folds 1-3)"),
        ([4, 1, 8, 9], 2, "repeat", "0 (repeat 2), 2 (repeat 1), 4 (repeats 1-2)"),
        ([], 3, "fold", ""),
    ],
)
def test_members_are_told_by_trial(numbers: list[int], of_trial: int, name: str, text: str) -> None:
    assert members_text(numbers, of_trial, name) == text
