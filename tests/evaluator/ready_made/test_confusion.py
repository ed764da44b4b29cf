"""How a classifier's confusions are counted and shown."""

import pytest
import torch
from pydantic import ValidationError

from nasflow.evaluator.ready_made.confusion import ConfusionCounter
from nasflow.job.events import MOST_CLASSES, parse_event
from nasflow.report.confusion import confusion_markdown


def test_batches_add_up_and_what_has_no_class_is_left_out() -> None:
    counter = ConfusionCounter(3)
    counter.update(torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 0, 9]]), torch.tensor([0, 0, -100]))
    counter.update(
        torch.tensor([[0.0, 0, 9], [0, 9, 0]], dtype=torch.bfloat16), torch.tensor([2, 5], dtype=torch.int32)
    )
    assert counter.counts == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(("output", "target"), [((4, 5), (4,)), ((4, 3, 2), (4, 2)), ((4,), (4,)), ((4, 3), (4, 3))])
def test_other_shapes_are_not_counted(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    counter = ConfusionCounter(3)
    counter.update(torch.zeros(output), torch.zeros(target, dtype=torch.long))
    assert counter.counts == []


def test_its_table() -> None:
    text = confusion_markdown(7, [[3, 1], [0, 0]])
    assert text.startswith("Trial 7 on test data")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert lines == [["class", "0", "1", "recall"], ["---"] * 4, ["0", "3", "1", "0.75"], ["1", "0", "0", ""]]


@pytest.mark.parametrize(
    "counts", ["[[1,2]]", "[[-1]]", "[[0.5]]", str([[0] * (MOST_CLASSES + 1)] * (MOST_CLASSES + 1)), '[["a"]]']
)
def test_events_of_hosts_are_checked(counts: str) -> None:
    with pytest.raises(ValidationError):
        parse_event(f'{{"kind":"confusion","trial":1,"counts":{counts}}}')
