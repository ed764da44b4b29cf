"""A search whose data no candidate can be trained on is refused, and goes on once they are mended."""

from tests.flows.searches import Searches

CODE = """
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        return torch.full((64,), number / 64), float(number % 10)


def rows(batch_size=16):
    return DataLoader(Rows(), batch_size), DataLoader(Rows(), batch_size)
"""
SAID = "evaluator.data: 'kind: classification' takes class numbers [B] of torch.int64"


def test_the_job_that_meets_them_trains_nothing_and_blames_no_trial(searches: Searches) -> None:
    file = searches.folder / "rows.py"
    file.write_text(CODE)
    searches.write(
        "search",
        base_dir=str(searches.folder),
        space={"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10}},
        evaluator={"kind": "classification", "data": {"target": "rows.py:rows"}, "epochs": 1},
        budget={"rounds": 1, "trials_per_round": 2},
        training_service={"kind": "debug"},
    )
    output = searches.run("run", "search.yaml", code=2)
    (said,) = [line for line in output.splitlines() if "error: " in line]
    assert said.startswith(f"error: {SAID}") and "Traceback" not in output
    shown = searches.json("show", "search")
    assert [(trial["status"], trial["error"]) for trial in shown["trials"]] == [("submitted", None)] * 2
    assert [state["state"] for state in shown["rounds"]] == ["failed"]
    file.write_text(CODE.replace("float(number % 10)", "number % 10"))
    searches.run("run", "search.yaml")
    shown = searches.json("show", "search")
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 2
    assert [state["state"] for state in shown["rounds"]] == ["completed"]
