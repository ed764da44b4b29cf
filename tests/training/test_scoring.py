"""A trained model, from its weights alone, scores what its search recorded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from nasflow.checkpoint.weights_file import write_weights
from nasflow.config.search import EvaluatorConfig
from nasflow.errors import CheckpointError, ConfigError, SpaceError
from nasflow.job.events import Final
from nasflow.job.spec import trial_dir
from nasflow.training.member.trained import other_weights, trained_weights, with_weights
from nasflow.training.repeated import first_metrics
from nasflow.training.scoring import load_model, score_model
from tests.training.jobs import HERE, evaluator, make_job, train

DIGITS = evaluator(
    data={"target": "nasflow.evaluator.data:Digits", "params": {"val_fraction": 0.5}},
    epochs=2,
    metrics=["accuracy", "f1", "auroc"],
    optimizer={"lr": {"float": [0.001, 0.1]}},
)
CELL = {"width": 8, "cells": 1, "cell0/op0": "conv3x3", "cell0/op1": "maxpool", "optimizer.lr": 0.02}
SCORE = """
import json, sys
from pathlib import Path
from nasflow.training.scoring import score_model
folder, base_dir = map(Path, sys.argv[1:])
search = json.loads((folder / "search.json").read_text())
architecture = json.loads((folder / "architecture.json").read_text())
print(json.dumps(score_model(search, architecture, folder / "model.safetensors", base_dir)))
import nasflow.training.runner
assert "prefect" not in sys.modules
"""


def exported(space: str, config: EvaluatorConfig, architecture: dict[str, Any], root: Path) -> dict[str, float]:
    """Train, and write what scoring needs; the metrics on record."""
    job = make_job(space, config, {4: architecture})
    [final] = [event for event in train(job, root) if isinstance(event, Final)]
    search = {
        "space": job.space.model_dump(mode="json"),
        "evaluator": config.model_dump(mode="json"),
        "seed": job.data_seed,
        "trial_seed": job.members[0].seed,
    }
    (root / "search.json").write_text(json.dumps(search))
    (root / "architecture.json").write_text(json.dumps(architecture))
    write_weights(root / "model.safetensors", trained_weights(trial_dir(root, 4)))
    if others := other_weights(trial_dir(root, 4)):
        write_weights(root / "module.safetensors", others)
    return final.metrics


def parts(root: Path) -> tuple[dict[str, Any], dict[str, Any], Path, Path]:
    search, architecture = (json.loads((root / f"{name}.json").read_text()) for name in ("search", "architecture"))
    return search, architecture, root / "model.safetensors", HERE


def scored(root: Path) -> dict[str, float]:
    return score_model(*parts(root))


def test_in_a_fresh_process(tmp_path: Path) -> None:
    recorded = exported("nasflow.space.ready:cell_cnn", DIGITS, CELL, tmp_path)
    command = [sys.executable, "-c", SCORE, str(tmp_path), str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    scores = json.loads(done.stdout.splitlines()[-1])
    assert scores.keys() == {"val_loss", "val_accuracy", "val_f1", "val_auroc", "parameters"}
    assert scores == pytest.approx({name: recorded[name] for name in scores}, rel=0, abs=1e-6)
    assert scores["val_accuracy"] > 0.5


def test_a_module_with_layers_of_its_own(tmp_path: Path) -> None:
    """They are trained as the model is, and no part of it."""
    module = {"target": "ordered_modules.py:Headed"}
    config = evaluator(kind="lightning", module=module, data={"target": "spaces.py:blobs"}, epochs=2)
    recorded = exported("spaces.py:linear", config, {"classes": 3}, tmp_path)
    assert "module.safetensors" in {path.name for path in tmp_path.iterdir()}
    assert scored(tmp_path)["val_loss"] == pytest.approx(recorded["val_loss"], rel=0, abs=1e-6)
    (tmp_path / "module.safetensors").unlink()
    assert scored(tmp_path)["val_loss"] != pytest.approx(recorded["val_loss"], rel=0, abs=1e-4)


@pytest.mark.parametrize(
    ("space", "architecture", "config"),
    [
        ("net", {"width": 8, "depth": 2, "dropout": 0.3}, evaluator(precision="64-true")),
        ("cnn", {"width": 4, "kernel": 3, "dropout": 0.1}, evaluator(data={"target": "spaces.py:images"})),
        (
            "linear",
            {"classes": 3},
            evaluator(kind="lightning", module={"target": "lightning_modules.py:Hooked"}, epochs=2),
        ),
        (
            "net",
            {"width": 4, "depth": 1, "dropout": 0.3},
            evaluator(data={"target": "spaces.py:TransferAugmented"}),
        ),
        (
            "net",
            {"width": 4, "depth": 1, "dropout": 0.3},
            evaluator(data={"target": "spaces.py:unbalanced"}, class_weights="balanced"),
        ),
    ],
    ids=["float64", "batch norm", "lightning", "data module", "balanced classes"],
)
def test_what_was_recorded(space: str, architecture: dict[str, Any], config: EvaluatorConfig, tmp_path: Path) -> None:
    recorded = exported(f"spaces.py:{space}", config, architecture, tmp_path)
    scores = scored(tmp_path)
    assert {"val_loss", "val_accuracy", "parameters"} <= scores.keys()
    assert scores == pytest.approx({name: recorded[name] for name in scores}, rel=0, abs=1e-6)


def test_what_a_hook_logs_again(tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": "shared_names.py:SharedStep"}, epochs=2)
    recorded = exported("spaces.py:linear", config, {"classes": 3}, tmp_path)
    scores = scored(tmp_path)
    assert {"loss", "score"} <= scores.keys()
    assert scores == pytest.approx({name: recorded[name] for name in scores}, rel=0, abs=1e-6)


@pytest.mark.parametrize("how", ["key", "module"])
def test_what_callbacks_log_and_average(how: str, tmp_path: Path) -> None:
    """An average of weights is what was exported, not the weights with which a module begins."""
    averaging = [{"target": "hooked_modules.py:LogsAverage", "params": {"decay": 0.5}}]
    module = {"target": f"hooked_modules.py:{'Plain' if how == 'key' else 'BringsLogging'}"}
    config = evaluator(
        kind="lightning",
        module=module,
        data={"target": "spaces.py:blobs"},
        callbacks=averaging if how == "key" else [],
        epochs=2,
    )
    recorded = exported("spaces.py:linear", config, {"classes": 3}, tmp_path)
    assert recorded["val_weight"] > 0
    scores = scored(tmp_path)
    assert scores.keys() >= {"val_loss", "val_weight"}
    assert scores == pytest.approx({name: recorded[name] for name in scores}, rel=0, abs=1e-6)
    search, *rest = parts(tmp_path)
    if how == "key":  # an export that does not hold the callbacks' code
        old = json.loads(json.dumps(search).replace("hooked_modules.py:LogsAverage", "gone.py:LogsAverage"))
        assert "val_weight" not in score_model({**old, "nasflow_export": 1}, *rest)


def test_a_callback_that_copies_weights_as_it_is_set_up(tmp_path: Path) -> None:
    own = [{"target": "hooked_modules.py:Shadows"}]
    data = {"target": "spaces.py:blobs"}
    config = evaluator(
        kind="lightning", module={"target": "hooked_modules.py:Plain"}, data=data, callbacks=own, epochs=2
    )
    recorded = exported("spaces.py:linear", config, {"classes": 3}, tmp_path)
    scores = scored(tmp_path)
    assert scores == pytest.approx({name: recorded[name] for name in scores}, rel=0, abs=1e-6)


def test_what_a_module_sees_of_its_progress_and_its_data(tmp_path: Path) -> None:
    """As in the last validation of the search."""
    module, data = {"target": "attentive_modules.py:Looks"}, {"target": "spaces.py:TransferAugmented"}
    config = evaluator(kind="lightning", module=module, data=data, epochs=3, accumulate_grad_batches=2)
    recorded = exported("spaces.py:linear", config, {"classes": 3}, tmp_path)
    expected = {"val_epoch": 2.0, "val_step": 6.0, "val_epochs": 3.0, "val_has_data": 1.0}
    assert expected.items() <= recorded.items() and expected.items() <= scored(tmp_path).items()


@pytest.mark.parametrize(("name", "repeats"), [("Backbone", 1), ("Wrapped", 1), ("InParts", 1), ("Backbone", 2)])
def test_a_model_that_its_module_holds_under_another_name(name: str, repeats: int, tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": f"held_modules.py:{name}"}, epochs=2, repeats=repeats)
    recorded = exported("spaces.py:net", config, {"width": 4, "depth": 1, "dropout": 0.3}, tmp_path)
    assert (recorded["val_loss"] == pytest.approx(scored(tmp_path)["val_loss"], rel=1e-6)) is (repeats == 1)
    if repeats > 1:
        assert first_metrics(trial_dir(tmp_path, 4))["val_loss"] == pytest.approx(scored(tmp_path)["val_loss"])


@pytest.mark.parametrize(
    "name", ["Extended", "ExtendedBySetup", "ExtendedThenByData", "HalfChanged", "Swapped", "SetUpByData"]
)
def test_a_model_that_its_module_changes(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {"target": "spaces.py:TransferAugmented"}
    config = evaluator(kind="lightning", module={"target": f"held_modules.py:{name}"}, data=data, epochs=1)
    recorded = exported("spaces.py:net", config, {"width": 4, "depth": 1, "dropout": 0.3}, tmp_path)
    scores = scored(tmp_path)
    assert scores["val_loss"] == pytest.approx(recorded["val_loss"], rel=0, abs=1e-6)
    assert scores["parameters"] == recorded["parameters"]
    model = load_model(*parts(tmp_path))
    names = ["Linear", "Tanh" if name == "Swapped" else "ReLU", "Dropout", "Linear"]
    more = ["Linear"] if name.startswith("Extended") else []
    assert [type(layer).__name__ for layer in model.children()] == [*names, *more]
    needs_data = name in ("SetUpByData", "ExtendedThenByData", "HalfChanged")
    assert ("could not be set up here: AttributeError" in caplog.text) is needs_data


def test_a_module_that_can_not_be_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    teacher = tmp_path / "teacher"
    teacher.touch()
    module = {"target": "held_modules.py:Taught", "params": {"file": str(teacher)}}
    config = evaluator(kind="lightning", module=module, epochs=1)
    exported("spaces.py:net", config, {"width": 4, "depth": 1, "dropout": 0.3}, tmp_path)
    assert isinstance(load_model(*parts(tmp_path))[1], nn.Tanh)  # type: ignore[index]
    teacher.unlink()
    model = load_model(*parts(tmp_path))
    assert isinstance(model[1], nn.ReLU)  # type: ignore[index]
    assert f"could not be made here: FileNotFoundError: [Errno 2] No such file or directory: '{teacher}'" in caplog.text


def test_a_module_that_looks_at_sizes_of_lazy_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = evaluator(kind="lightning", module={"target": "held_modules.py:BySizes"}, epochs=1)
    recorded = exported("held_modules.py:counting", config, {"width": 4}, tmp_path)
    assert scored(tmp_path)["val_loss"] == pytest.approx(recorded["val_loss"], rel=0, abs=1e-6)
    model = load_model(*parts(tmp_path))
    assert not caplog.records and model[-1].scale == 1  # type: ignore[index, union-attr]
    [hook] = model._forward_hooks.values()
    with pytest.raises(RuntimeError, match="BySizes is not attached to a `Trainer`"):
        _ = hook.__self__.trainer  # type: ignore[attr-defined]


def test_weights_of_another_model_are_told(tmp_path: Path) -> None:
    """Where the module that changes it needs data that is not there, or the code is another now."""
    data = {"target": "spaces.py:TransferAugmented"}
    config = evaluator(kind="lightning", module={"target": "held_modules.py:ExtendedByData"}, data=data, epochs=1)
    exported("spaces.py:net", config, {"width": 4, "depth": 1, "dropout": 0.3}, tmp_path)
    said = r"do not fit the model .* use the code of the search \(.*Unexpected key.*\); its .* could not be set up here"
    with pytest.raises(CheckpointError, match=said):
        load_model(*parts(tmp_path))
    search, _, *rest = parts(tmp_path)
    with pytest.raises(CheckpointError, match=r"the search \(.*size mismatch"):
        score_model(search, {"width": 8, "depth": 1, "dropout": 0.3}, *rest)


@pytest.mark.parametrize("name", ["Backbone", "Wrapped", "InParts", "Extended"])
def test_a_model_with_a_state_that_is_no_tensor(name: str, tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": f"held_modules.py:{name}"}, epochs=1)
    recorded = exported("held_modules.py:counting", config, {"width": 4}, tmp_path)
    assert scored(tmp_path)["val_loss"] == pytest.approx(recorded["val_loss"], rel=0, abs=1e-6)
    model = load_model(*parts(tmp_path))
    assert model[0].seen["calls"] > 4 and model[0].seen["last"].abs().sum() > 0  # type: ignore[index, union-attr]


class Mixed(nn.Module):
    """Tensors of many kinds, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.rand(3).double())
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("unsaved", torch.ones(2), persistent=False)
        self.trunk, self.head = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.tied = self.head


@pytest.mark.parametrize("how", ["as they are", "all in one"])
def test_weights_keep_their_precision(how: str) -> None:
    trained, model = Mixed(), Mixed()
    if how == "all in one":
        del trained.phase, model.phase
        trained.half()
    weights = trained.state_dict()
    with_weights(model, weights)
    assert {name: t.dtype for name, t in model.state_dict().items()} == {name: t.dtype for name, t in weights.items()}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert model.tied.weight is model.head.weight
    assert model.unsaved.dtype == (torch.float16 if how == "all in one" else torch.float32)


def test_a_module_that_holds_a_part_only_has_no_trained_model(tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": "held_modules.py:Half"}, epochs=1)
    with pytest.raises(CheckpointError, match=r"does not hold all of the model .* keep the whole model in it"):
        exported("spaces.py:net", config, {"width": 4, "depth": 1, "dropout": 0.3}, tmp_path)


def test_other_weights_score_otherwise(tmp_path: Path) -> None:
    recorded = exported("spaces.py:net", evaluator(), {"width": 8, "depth": 1, "dropout": 0.3}, tmp_path)
    weights = {name: tensor + 0.5 for name, tensor in trained_weights(trial_dir(tmp_path, 4)).items()}
    write_weights(tmp_path / "model.safetensors", weights)
    assert abs(scored(tmp_path)["val_loss"] - recorded["val_loss"]) > 1e-3


def test_the_model_comes_back_in_eval_mode(tmp_path: Path) -> None:
    architecture = {"width": 8, "depth": 1, "dropout": 0.3}
    exported("spaces.py:net", evaluator(), architecture, tmp_path)
    search = json.loads((tmp_path / "search.json").read_text())
    model = load_model(search, architecture, tmp_path / "model.safetensors", HERE)
    assert not any(module.training for module in model.modules())
    assert isinstance(model[0], nn.Linear)
    weights = trained_weights(trial_dir(tmp_path, 4))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(SpaceError, match="label 'width'"):
        load_model(search, {**architecture, "width": 7}, tmp_path / "model.safetensors", HERE)


def test_a_failure_is_raised_and_not_swallowed(tmp_path: Path) -> None:
    architecture = {"width": 8, "depth": 1, "dropout": 0.3, "fault": "none", "after": 1, "training": False}
    exported("spaces.py:faulty", evaluator(), architecture, tmp_path)
    (tmp_path / "architecture.json").write_text(json.dumps({**architecture, "fault": "raise"}))
    with pytest.raises(Exception, match="ValueError: a layer gave up"):
        scored(tmp_path)


def test_where_relative_paths_start_must_be_a_folder(tmp_path: Path) -> None:
    for function in (load_model, score_model):
        (tmp_path / "w.safetensors").write_bytes(safetensors.torch.save({}))
        with pytest.raises(ConfigError, match=f"there is no folder {tmp_path}/no, in which relative paths would start"):
            function({}, {}, tmp_path / "w.safetensors", HERE, tmp_path / "no")


def test_only_a_missing_file_of_a_relative_path_is_told_as_missing_data(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def build(pick, file):\n    open(file)\n")
    write_weights(tmp_path / "w.safetensors", {})

    def load(file: str, paths: Path | None) -> None:
        space = {"target": f"{tmp_path}/own.py:build", "params": {"file": file}}
        search = {"space": space, "evaluator": evaluator().model_dump(mode="json"), "trial_seed": 1}
        load_model(search, {}, tmp_path / "w.safetensors", HERE, paths)

    with pytest.raises(ConfigError, match=rf"'no\.csv': .* start in {tmp_path}, or in the folder DIR of 'score.py --"):
        load("no.csv", tmp_path)
    with pytest.raises(ConfigError, match=r"start in .*, the present folder: change to that where the data is"):
        load("no.csv", None)  # as the scripts of earlier exports do, which have no --base-dir
    with pytest.raises(FileNotFoundError):
        load(f"{tmp_path}/no.csv", tmp_path)


def test_without_validation_data_there_is_no_score(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:train_only"})
    exported("spaces.py:net", config, {"width": 8, "depth": 1, "dropout": 0.3}, tmp_path)
    with pytest.raises(ConfigError, match=r"evaluator.data: spaces.py:train_only gives no validation data"):
        scored(tmp_path)


def test_what_a_model_draws_beside_its_weights_is_drawn_again(tmp_path: Path) -> None:
    """Such as fixed random features, which are in no state dict."""
    config = evaluator(data={"target": "spaces.py:blobs"}, epochs=2)
    recorded = exported("ordered_modules.py:fourier", config, {"width": 8}, tmp_path)
    assert scored(tmp_path)["val_loss"] == pytest.approx(recorded["val_loss"], rel=0, abs=1e-6)


@pytest.mark.parametrize("harm", ["damaged", "gone", "not readable now"])
def test_weights_of_an_earlier_epoch_are_no_trained_model(tmp_path: Path, harm: str) -> None:
    """Its metrics are those of the last epoch; and who only reads removes nothing."""
    train(make_job("spaces.py:net", evaluator(epochs=2), {4: {"width": 8, "depth": 1, "dropout": 0.3}}), tmp_path)
    folder = trial_dir(tmp_path, 4)
    assert trained_weights(folder)
    last = folder / "epoch-0002.safetensors"
    last.unlink()
    if harm == "damaged":
        last.write_bytes(b"")
    elif harm == "not readable now":
        last.mkdir()
    before = sorted(folder.iterdir())
    for read in (trained_weights, other_weights, first_metrics):
        with pytest.raises(
            CheckpointError, match="at present" if harm == "not readable now" else "is of epoch 1, after"
        ):
            read(folder)
    assert sorted(folder.iterdir()) == before
