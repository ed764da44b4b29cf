"""A search whose candidates have a trainable layer in common is refused, and goes on once that is mended."""

from pathlib import Path
from typing import Any

import pytest

from tests.flows.searches import Searches

CODE = """
import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional as F

COMMON = nn.Linear(64, 16)
SCALE = nn.Parameter(torch.ones(()))


def build(pick):
    body = {"own": nn.Linear(64, 16), "common": COMMON}[pick("body", ["own", "common"])]
    return nn.Sequential(body, nn.ReLU(), nn.Linear(16, pick("outputs", [10, 11])))


def common(pick):
    return nn.Sequential(COMMON, nn.ReLU(), nn.Linear(16, pick("outputs", [10, 11])))


def own(pick):
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, pick("outputs", [10, 11])))


class Scaled(LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model, self.scale = model, SCALE

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.scale * self.model(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_accuracy", (self.model(x).argmax(-1) == y).float().mean(), batch_size=len(y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
"""
DATA = {"target": "nasflow.evaluator.data:DigitsRows"}
SUPERVISED = {"kind": "classification", "data": DATA, "epochs": 1}
SCALED = {"kind": "lightning", "module": {"target": "models.py:Scaled"}, "data": DATA, "epochs": 1}


def write(searches: Searches, space: str, evaluator: dict[str, Any], rounds: int = 1, **config: Any) -> Path:
    """The code, and a search in it of two trials a round; the code's file."""
    file = searches.folder / "models.py"
    file.write_text(CODE)
    searches.write(
        "search",
        base_dir=str(searches.folder),
        space={"target": f"models.py:{space}"},
        evaluator=evaluator,
        strategy={"kind": "grid"},
        budget={"rounds": rounds, "trials_per_round": 2},
        **{"training_service": {"kind": "debug"}, **config},
    )
    return file


def refused(searches: Searches, command: str, sentence: str) -> None:
    """The command says this one sentence and ends with 2."""
    output = searches.run(command, "search.yaml", code=2)
    (said,) = [line for line in output.splitlines() if "error: " in line]
    assert said.startswith("error: ") and sentence in said
    assert "Traceback" not in output


@pytest.mark.parametrize("command", ["validate", "run"])
def test_nothing_begins_if_every_candidate_has_it(searches: Searches, command: str) -> None:
    write(searches, "common", SUPERVISED)
    refused(searches, command, "space.target: models.py:common makes '0.weight' (Linear) outside of build(pick)")
    assert {path.name for path in searches.folder.iterdir()} <= {"models.py", "search.yaml", "__pycache__"}


def test_the_round_that_proposes_it_ends_before_it_trains(searches: Searches) -> None:
    """Nothing is lost of the round before, and nothing of the rest once the space is mended."""
    file = write(searches, "build", SUPERVISED, rounds=2, seed=2)  # with it the check samples a body of its own
    refused(searches, "run", "space.target: models.py:build makes '0.weight' (Linear) outside of build(pick)")
    shown = searches.json("show", "search")
    assert [(trial["round"], trial["status"]) for trial in shown["trials"]] == [(0, "trained")] * 2
    assert [state["state"] for state in shown["rounds"]] == ["completed", "failed"]
    file.write_text(CODE.replace('"common": COMMON', '"common": nn.Linear(64, 16)'))
    searches.run("run", "search.yaml")
    shown = searches.json("show", "search")
    assert [(trial["round"], trial["status"]) for trial in shown["trials"]] == [(n, "trained") for n in (0, 0, 1, 1)]
    assert [state["state"] for state in shown["rounds"]] == ["completed", "completed"]


@pytest.mark.long
def test_the_job_that_meets_it_trains_nothing_and_blames_no_trial(searches: Searches) -> None:
    file = write(searches, "own", SCALED, training_service={"kind": "local"})
    refused(searches, "run", "trials 0 and 1 of models.py:own would train the same 'scale' (Scaled)")
    shown = searches.json("show", "search")
    assert [(trial["status"], trial["error"]) for trial in shown["trials"]] == [("submitted", None)] * 2
    assert [state["state"] for state in shown["rounds"]] == ["failed"]
    assert {event["kind"] for event in searches.events("search")} == {"started", "ended"}
    file.write_text(CODE.replace("model, SCALE", "model, nn.Parameter(torch.ones(()))"))
    searches.run("run", "search.yaml")
    shown = searches.json("show", "search")
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 2
    assert [state["state"] for state in shown["rounds"]] == ["completed"]
