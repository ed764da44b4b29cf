"""One space over the model and its training; evaluators of every kind; mistakes told before anything trains."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from pytorch_lightning import LightningModule

from nasflow.config.search import EvaluatorConfig, SearchConfig, Target, parse_config
from nasflow.errors import ConfigError, DataError, SpaceError, UserError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.evaluator.check import check_search
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.ready_made.supervised import ClassificationModule, RegressionModule
from tests.evaluator.targets import Custom, Scaled, linear

HERE = Path(__file__).parent
DATA = {"target": "targets.py:pair"}
LINEAR = Target(target="targets.py:linear")
FUNCTION = {"kind": "function", "target": "targets.py:trains"}

_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def evaluator(**values: Any) -> EvaluatorConfig:
    return _EVALUATOR.validate_python({"kind": "classification", "data": DATA, **values})


def test_labels_of_the_model_come_first() -> None:
    config = evaluator(optimizer={"lr": {"float": [0.1, 0.2]}}, epochs={"int": [1, 3]})
    space = candidate_space(LINEAR, config, HERE)
    architecture = space.sample(random.Random(0))
    assert list(architecture) == ["bias", "epochs", "optimizer.lr"]
    candidate: Candidate = space.build(architecture)
    assert candidate.config.epochs == architecture["epochs"]
    assert candidate.config.optimizer.lr == architecture["optimizer.lr"]
    assert candidate.parameters == (8 if architecture["bias"] else 6)
    assert candidate.model(torch.zeros(5, 3)).shape == (5, 2)


def test_params_reach_the_space() -> None:
    space = candidate_space(Target(target="targets.py:linear", params={"features": 7, "outputs": 1}), evaluator(), HERE)
    assert space.build({"bias": False}).parameters == 7


def test_a_builder_that_changes_its_params_changes_no_other_model() -> None:
    target = Target(target="targets.py:reversing", params={"widths": [3, 7]})
    space = candidate_space(target, evaluator(), HERE)
    assert [space.build({"outputs": 2}).model.in_features for _ in range(2)] == [7, 7]


def test_an_architecture_that_does_not_fit_names_its_label() -> None:
    space = candidate_space(LINEAR, evaluator(epochs={"int": [1, 3]}), HERE)
    for architecture, label in [({"bias": True}, "epochs"), ({"bias": True, "epochs": 4}, "epochs"), ({}, "bias")]:
        with pytest.raises(SpaceError, match=f"label '{label}'"):
            space.build(architecture)
    with pytest.raises(SpaceError, match="width"):
        space.build({"bias": True, "epochs": 2, "width": 4})


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("targets.py:DATA", "target 'targets.py:DATA': 'targets.py' has no 'DATA'"),
        ("targets.py:no_model", "space.target: targets.py:no_model gave a int; it should give an nn.Module"),
        ("targets.py:__name__", "space.target: targets.py:__name__ is not callable; it should be build"),
    ],
)
def test_a_space_that_is_none(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        candidate_space(Target(target=target), evaluator(), HERE).build({"number": 1})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, ClassificationModule),
        ({"kind": "regression"}, RegressionModule),
        ({"kind": "lightning", "module": {"target": "targets.py:Scaled", "params": {"factor": 2.0}}}, Scaled),
        ({"kind": "custom", "target": "targets.py:Custom", "params": {"factor": 3.0}}, Scaled),
    ],
    ids=["classification", "regression", "lightning", "custom"],
)
def test_every_kind(values: dict[str, Any], kind: type[LightningModule]) -> None:
    config = evaluator(**values)
    model = torch.nn.Linear(3, 2)
    module = make_evaluator(config, HERE).module(model)
    assert type(module).__name__ == kind.__name__
    assert module.model is model
    if kind is Scaled:
        assert module.factor == (3.0 if config.kind == "custom" else 2.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"kind": "custom", "target": "targets.py:NoEvaluator"},
            "evaluator.target: targets.py:NoEvaluator should be a nasflow.evaluator.base.Evaluator class",
        ),
        (
            {"kind": "custom", "target": "targets.py:Custom", "params": {"faktor": 1}},
            "evaluator.target: targets.py:Custom does not take these params: .*'faktor'",
        ),
        (
            {"kind": "lightning", "module": {"target": "targets.py:Custom"}},
            "evaluator.module: targets.py:Custom should be a LightningModule class",
        ),
        (
            {"kind": "lightning", "module": {"target": "targets.py:Scaled"}},
            "evaluator.module: targets.py:Scaled does not take these params: .*'factor'",
        ),
        ({"kind": "lightning", "module": {"target": "nowhere:A"}}, "target 'nowhere:A': there is no module 'nowhere'"),
    ],
)
def test_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        make_evaluator(evaluator(**values), HERE)
    assert "\n" not in str(caught.value)


def search(**changes: Any) -> SearchConfig:
    """A search that is right but for the changes, whose keys are dotted."""
    values: dict[str, Any] = {
        "name": "s",
        "base_dir": str(HERE),
        "space": {"target": "targets.py:linear"},
        "evaluator": {"kind": "classification", "data": dict(DATA)},
    }
    for path, value in changes.items():
        *parents, last = path.split(".")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return parse_config(values)


@pytest.mark.parametrize(
    ("strategy", "budget", "said"),
    [
        ({}, {}, "until 50 trials have a score, and the budget has 48 trials"),
        ({"params": {"population_size": 12}}, {"trials": 12}, "until 12 trials have a score, and the budget has 12"),
        ({"params": {"population_size": 12}}, {}, None),
        ({}, {"rounds": 4}, None),
    ],
)
def test_a_budget_with_which_nsga2_learns_nothing_is_said(
    strategy: dict[str, Any], budget: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_search(search(strategy={"kind": "nsga2", **strategy}, budget=budget))
    found = [entry.getMessage() for entry in caplog.records if "nsga2" in entry.getMessage()]
    assert len(found) == (said is not None) and all(str(said) in message for message in found)


def test_a_right_search_passes_and_gives_its_space() -> None:
    space = check_search(search(**{"evaluator.optimizer": {"lr": {"float": [0.1, 0.2]}}}))
    assert list(space.sample(random.Random(0))) == ["bias", "optimizer.lr"]
    custom = {"kind": "custom", "target": "targets.py:Custom", "data": DATA}
    check_search(search(evaluator=custom, objectives=[{"metric": "anything", "direction": "minimize"}]))
    check_search(search(**{"evaluator.data.target": "targets.py:stream"}))
    by_step = {"evaluator.schedule": {"name": "cosine", "interval": "step"}, "evaluator.batches_per_epoch": 2}
    check_search(search(**{"evaluator.data.target": "targets.py:stream"} | by_step))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space.target": "nowhere:A"}, "there is no module 'nowhere'"),
        ({"space.params": {"inputs": 3}}, "inputs"),
        (
            {"evaluator.optimizer": {"name": "sgd", "betas": [0.9, 0.99]}},
            r"evaluator.optimizer.betas: sgd does not take",
        ),
        ({"evaluator.data.target": "targets.py:pear"}, "target 'targets.py:pear': 'targets.py' has no 'pear'"),
        (
            {"evaluator.data.params": {"sise": 3}},
            "evaluator.data: targets.py:pair does not take these params: .*'sise'",
        ),
        ({"evaluator.data.params": {"size": 0}}, "evaluator.data: targets.py:pair gives no batch to train on; let its"),
        ({"evaluator.epochs": 0}, "evaluator.epochs: is 0; it should be at least 1"),
        ({"evaluator.stop_after": 0}, "evaluator.stop_after: is 0; it should be at least 1"),
        ({"evaluator.early_stopping": {"metric": "val_f1"}}, "evaluator.early_stopping.metric: no metric 'val_f1'"),
        ({"checkpoint.best": {"metric": "val_acc"}}, "checkpoint.best.metric: no metric 'val_acc' is logged"),
        (
            {
                "evaluator.data.target": "targets.py:one_loader",
                "objectives": [{"metric": "train_loss"}],
                "checkpoint.best": {"metric": "val_loss"},
            },
            "checkpoint.best: 'val_loss' needs validation data",
        ),
        (
            {
                "evaluator.data.target": "targets.py:stream",
                "evaluator.schedule": {"name": "cosine", "interval": "step"},
            },
            "loader does not know its length; give the loader a __len__, or use 'interval: epoch'",
        ),
        ({"objectives": [{"metric": "val_f1"}]}, "objectives: no metric 'val_f1' is logged; there are: train_loss"),
        (
            {"evaluator.test_data": DATA, "objectives": [{"metric": "test_acc", "direction": "maximize"}]},
            "objectives: 'test_acc' begins with 'test_', as the scores on evaluator.test_data do; log it under another",
        ),
        ({"evaluator.data.target": "targets.py:one_loader"}, "objectives: 'val_accuracy' needs validation data"),
        (
            {
                "evaluator.data.target": "targets.py:one_loader",
                "objectives": [{"metric": "train_loss"}],
                "evaluator.early_stopping": {},
            },
            "evaluator.early_stopping: 'val_loss' needs validation data",
        ),
        (
            {
                "evaluator.data.target": "targets.py:one_loader",
                "objectives": [{"metric": "train_loss"}],
                "evaluator.schedule": {"name": {"pick": ["cosine", "plateau"]}},
            },
            "evaluator.schedule: 'val_loss' needs validation data",
        ),
        ({"evaluator.data.target": "targets.py:pair_in_a_list"}, "let it give a tuple: return train, validation"),
    ],
)
def test_mistakes_are_told_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        check_search(search(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"space.target": "__main__:build"}, "space.target"),
        ({"evaluator.data.target": "__main__:build"}, "evaluator.data.target"),
        ({"evaluator.callbacks": [{"target": "__main__:build"}]}, "evaluator.callbacks.0.target"),
        ({"pruner": {"kind": "custom", "target": "__main__:build"}}, "pruner.target"),
        ({"merge.passes": ["__main__:build"]}, "merge.passes.0"),
        (
            {"space.target": "__main__:build", "evaluator": FUNCTION, "training_service": {"kind": "debug"}},
            "space.target",  # a function has its process on every service
        ),
    ],
)
def test_what_only_this_process_has_is_refused(changes: dict[str, Any], key: str) -> None:
    said = f"^{key}: jobs are other processes, which have another __main__; write build into a file .* own.py:build$"
    with pytest.raises(ConfigError, match=said):
        check_search(search(**changes))


def test_a_search_in_this_process_may_have_code_that_only_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "own_linear", linear, raising=False)
    check_search(search(**{"space.target": "__main__:own_linear", "training_service.kind": "debug"}))


LABELS = "takes class numbers [B] of torch.int64, or a share of each class [B, C] of the outputs' type, as targets; its"
REGRESSION = {"evaluator.kind": "regression", "objectives": [{"metric": "val_rmse"}]}


@pytest.mark.parametrize("loaded", ["tensors", "samples", "part", "drawn", "drawn of a part"])
@pytest.mark.parametrize(
    ("how", "changes", "said"),
    [
        ("float", {}, f"evaluator.data: 'kind: classification' {LABELS} loader gives (8,) of torch.float32"),
        ("column", {}, f"evaluator.data: 'kind: classification' {LABELS} loader gives (8, 1) of torch.int64"),
        (
            "from -1",
            {},
            "evaluator.data: its loader gives the class number -1; let the numbers of classes begin with 0",
        ),
        (
            "one-hot",
            {},
            "evaluator.metrics: 'accuracy' needs class numbers [B] as targets, and the validation data give",
        ),
        ("nan", REGRESSION, "evaluator.data: its loader gives targets that are not finite (nan or inf)"),
    ],
)
def test_targets_that_no_candidate_can_use_are_told_before_anything_trains(
    how: str, changes: dict[str, Any], said: str, loaded: str
) -> None:
    """Where they are known without loading samples."""
    target = {"evaluator.data.target": "targets.py:labelled", **changes}
    with pytest.raises(DataError) as refused:
        check_search(search(**target, **{"evaluator.data.params": {"how": how, "loaded": loaded}}))
    assert str(refused.value).startswith(said)


RESTS = ["", " drawn", " weighted", " listed", " in batches", " of a few", " but the last"]


@pytest.mark.parametrize(
    "changes",
    [{"loaded": f"rest{how}"} for how in RESTS] + [{"loaded": "own batches"}, {"how": {"pick": ["float", "nan"]}}],
)
def test_targets_that_only_some_candidates_or_samples_have_are_left_to_the_jobs(changes: dict[str, Any]) -> None:
    params = {"how": "from -1", "loaded": "tensors", **changes}
    check_search(search(**{"evaluator.data.target": "targets.py:labelled", "evaluator.data.params": params}))
    own = {"target": "torch.nn:MultiLabelSoftMarginLoss"}
    changed = {"evaluator.loss": own, "evaluator.metrics": [], "objectives": [{"metric": "val_loss"}]}
    check_search(
        search(
            **{"evaluator.data.target": "targets.py:labelled", "evaluator.data.params": {"how": "one-hot"}}, **changed
        )
    )


@pytest.mark.parametrize(
    ("params", "changes", "said"),
    [
        ({"size": 9}, {}, "the last training batch of targets.py:of_size has one sample, on which BatchNorm1d fails"),
        ({"size": 9, "loaded": "samples"}, {}, "the last training batch of targets.py:of_size has one sample"),
        ({"size": 9, "loaded": "samples", "drop_last": True}, {}, None),
        ({"size": 9, "loaded": "drawn"}, {}, None),
        ({"size": 9, "loaded": "streamed"}, {}, None),
        ({"size": 9, "loaded": "uncounted"}, {}, None),
        ({"size": 8}, {}, None),
        ({"size": 9}, {"space.params": {"norm": False}}, None),
        ({"size": 8}, {"evaluator.data.fraction": 0.625}, "the last training batch of targets.py:of_size has one"),
        ({"size": 9}, {"evaluator.folds": 3}, None),
        ({"size": 8}, {"evaluator.folds": 3}, "the last training batch of targets.py:of_size has one sample"),
        (
            {"size": 8, "kind": "float64"},
            {},
            "targets.py:of_size gives inputs of torch.float64, and layers of torch.float3",
        ),
        ({"size": 8, "kind": "float64", "loaded": "samples"}, {}, "gives inputs of torch.float64"),
        ({"size": 8, "kind": "float64"}, {"evaluator.precision": "64-true"}, None),
    ],
)
def test_batches_on_which_candidates_fail_are_warned_of(
    params: dict[str, Any], changes: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    of_size = {"evaluator.data.target": "targets.py:of_size", "evaluator.data.params": params}
    check_search(search(**{"space.target": "targets.py:normed"}, **of_size, **changes))
    found = [entry.getMessage() for entry in caplog.records if "evaluator.data" in entry.getMessage()]
    assert len(found) == (said is not None) and all(str(said) in message for message in found)


def test_a_tensor_that_is_kept_from_a_build_without_values_is_told() -> None:
    said = r"targets.py:cached keeps 'grid' from an earlier build, .* make it in each build\(pick\), or name its device"
    cached = {"space.target": "targets.py:cached"}
    with pytest.raises(SpaceError, match=said):
        check_search(search(**cached, training_service={"kind": "debug"}))
    check_search(search(**cached))  # jobs of the local service have other processes
    check_search(search(**cached, training_service={"kind": "debug"}, evaluator=FUNCTION))  # so have programs
    space = candidate_space(Target(target="targets.py:cached"), evaluator(), HERE)
    space.is_real = True  # as for a report or a warm start, after a build that looks at values
    assert [space.validate({"size": size}).parameters for size in (4, 5)] == [8, 8]
    space = check_search(search(**{"space.target": "targets.py:cached", "space.params": {"device": "cpu"}}))
    assert space.build({"size": 4}).model.grid.tolist() == [0, 1, 2, 3]
    check_search(search(**{"space.target": "targets.py:hollow"}))


def test_custom_is_an_evaluator_of_the_same_contract() -> None:
    config = evaluator(kind="custom", target="targets.py:Custom")
    assert Custom(config).config is config


def test_relative_paths_start_where_they_start_in_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the config, wherever the command is run."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "sizes.txt").write_text("3 2")
    (tmp_path / "there" / "own.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n\n"
        "def linear(pick, file):\n    return nn.Linear(*map(int, Path(file).read_text().split()))\n"
    )
    monkeypatch.chdir(tmp_path / "here")
    space = {"target": "own.py:linear", "params": {"file": "sizes.txt"}}
    data = {"target": f"{HERE}/targets.py:pair"}
    checked = check_search(search(space=space, base_dir=str(tmp_path / "there"), **{"evaluator.data": data}))
    assert Path.cwd() == tmp_path / "here"
    made = candidate_space(Target.model_validate(space), evaluator(data=data), tmp_path / "there")
    for each in (checked, made):  # where it is explored later, too
        assert each.validate(each.sample(random.Random(0))).parameters == each.build({}).parameters == 8
        assert each.count().value == 1
    assert Path.cwd() == tmp_path / "here"


def test_a_space_of_installed_code_needs_no_folder(tmp_path: Path) -> None:
    space = candidate_space(Target(target="nasflow.space.ready:mlp"), evaluator(), tmp_path / "gone")
    assert space.build(space.sample(random.Random(0))).parameters
