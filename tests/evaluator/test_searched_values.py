"""Any value of an evaluator may be searched: closing it, label by label."""

import random
from typing import Any

import pytest
import torch

from nasflow.config.search import ClassificationConfig, EvaluatorConfig, LightningConfig, RegressionConfig
from nasflow.errors import ConfigError, SpaceError
from nasflow.evaluator.ready_made.optimizers import make_optimizer
from nasflow.evaluator.searched_values import close_searched
from nasflow.space.domain import Categorical, FloatDomain, IntDomain
from nasflow.space.pick import FixedPick, RandomPick

DATA = {"target": "a:b"}
EVERYTHING = ClassificationConfig.model_validate(
    {
        "data": {**DATA, "params": {"batch_size": {"pick": [32, 64]}, "deep": {"a": [{"int": [1, 3]}, 5]}}},
        "epochs": {"int": [2, 9], "log": True},
        "gradient_clip_val": {"float": [0.1, 1]},
        "early_stopping": {"patience": {"int": [1, 5], "step": 2}, "min_delta": {"pick": [0, 0.1]}},
        "optimizer": {
            "name": {"pick": ["adam", "adamw"]},
            "lr": {"float": [1e-4, 1e-1], "log": True},
            "betas": [{"float": [0.8, 0.95]}, 0.999],
        },
        "schedule": {"name": {"pick": ["cosine", "step"]}, "warmup_epochs": {"int": [0, 2]}},
        "label_smoothing": {"float": [0, 0.2]},
    }
)
DOMAINS = {
    "data.params.batch_size": Categorical((32, 64)),
    "data.params.deep.a.0": IntDomain(1, 3),
    "epochs": IntDomain(2, 9, log=True),
    "gradient_clip_val": FloatDomain(0.1, 1.0),
    "early_stopping.patience": IntDomain(1, 5, step=2),
    "early_stopping.min_delta": Categorical((0.0, 0.1)),
    "optimizer.name": Categorical(("adam", "adamw")),
    "optimizer.lr": FloatDomain(1e-4, 1e-1, log=True),
    "optimizer.betas.0": FloatDomain(0.8, 0.95),
    "schedule.name": Categorical(("cosine", "step")),
    "schedule.warmup_epochs": IntDomain(0, 2),
    "label_smoothing": FloatDomain(0.0, 0.2),
}


def test_labels_are_paths_in_the_config() -> None:
    pick = RandomPick(random.Random(0))
    close_searched(EVERYTHING, pick)
    assert pick.domains == DOMAINS


def test_each_value_becomes_its_choice() -> None:
    pick = RandomPick(random.Random(0))
    closed = close_searched(EVERYTHING, pick)
    chosen = pick.architecture
    assert closed.epochs == chosen["epochs"]
    assert closed.data.params == {
        "batch_size": chosen["data.params.batch_size"],
        "deep": {"a": [chosen["data.params.deep.a.0"], 5]},
    }
    assert closed.optimizer.betas == (chosen["optimizer.betas.0"], 0.999)
    assert closed.optimizer.lr == chosen["optimizer.lr"]
    assert closed.early_stopping is not None
    assert closed.early_stopping.patience == chosen["early_stopping.patience"]
    assert closed.early_stopping.metric == "val_loss"
    again = close_searched(EVERYTHING, FixedPick(chosen))
    assert again == closed
    assert again.model_dump() == closed.model_dump()


@pytest.mark.parametrize(
    "config",
    [
        ClassificationConfig.model_validate({"data": DATA}),
        RegressionConfig.model_validate({"data": DATA, "loss": "huber", "gradient_clip_val": 1}),
        LightningConfig.model_validate({"data": DATA, "module": {"target": "a:B", "params": {"x": [1, {"y": None}]}}}),
    ],
    ids=lambda config: config.kind,
)
def test_what_is_not_searched_stays(config: EvaluatorConfig) -> None:
    pick = RandomPick(random.Random(0))
    assert close_searched(config, pick) == config
    assert pick.domains == {}


@pytest.mark.parametrize(
    "mapping",
    [
        {"float": 32},
        {"float": [1, 2], "unit": "cm"},
        {"int": "eger"},
        {"pick": []},
        {"pick": "me"},
        {"float": [1]},
        {"float": ["a", "b", "c"]},
    ],
    ids=str,
)
def test_a_users_mapping_that_only_looks_like_a_search_stays(mapping: dict[str, Any]) -> None:
    config = ClassificationConfig.model_validate({"data": {**DATA, "params": {"own": mapping}}})
    assert close_searched(config, RandomPick(random.Random(0))).data.params == {"own": mapping}


def test_a_range_that_is_none_names_its_label() -> None:
    config = ClassificationConfig.model_validate({"data": DATA, "optimizer": {"lr": {"float": [0.1, 0.01]}}})
    with pytest.raises(SpaceError, match=r"label 'optimizer.lr': low \(0.1\) is above high \(0.01\)"):
        close_searched(config, RandomPick(random.Random(0)))


def test_params_are_searched_but_not_as_a_whole() -> None:
    """They may have a name like a searched value's key."""
    config = ClassificationConfig.model_validate({"data": {**DATA, "params": {"int": [1, 3], "n": {"int": [2, 2]}}}})
    assert close_searched(config, RandomPick(random.Random(0))).data.params == {"int": [1, 3], "n": 2}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"int": [16, 64], "steps": 16}, r"module\.params\.width\.steps: unknown key; did you mean 'step'\?"),
        ({"float": [0, 0.5], "step": 0.1}, r"module\.params\.width\.step: unknown key"),
        ({"pick": [1, 2], "log": True}, r"module\.params\.width\.log: unknown key"),
        (
            {"float": [0.1, 0.3, 0.5]},
            r"^evaluator\.module\.params\.width: 'float' takes the lowest and the highest number; to choose among "
            r"some, give \{pick: \[0\.1, 0\.3, 0\.5\]\}$",
        ),
        ({"int": [1, 2.5]}, r"width: 'int' takes the lowest and the highest number, which are whole; "),
    ],
)
def test_a_slip_in_a_searched_param_is_no_literal(given: dict[str, Any], what: str) -> None:
    module = {"target": "m.py:M", "params": {"width": given}}
    config = LightningConfig.model_validate({"kind": "lightning", "module": module, "data": DATA})
    with pytest.raises(ConfigError, match=what):
        close_searched(config, RandomPick(random.Random(0)))


def test_keys_of_one_optimizer_among_several_are_not_given_to_the_others() -> None:
    optimizer = {"name": {"pick": ["sgd", "adamw"]}, "momentum": {"float": [0.8, 0.9]}, "nesterov": True, "eps": 1e-6}
    config = ClassificationConfig.model_validate({"data": DATA, "optimizer": optimizer})
    found = {}
    for seed in range(20):
        pick = RandomPick(random.Random(seed))
        closed = close_searched(config, pick).optimizer
        found[closed.name] = closed, set(pick.domains)
        make_optimizer(closed, [torch.zeros(1, requires_grad=True)])
    sgd, labels = found["sgd"]
    assert (sgd.nesterov, sgd.eps) == (True, None) and labels == {"optimizer.name", "optimizer.momentum"}
    adamw, labels = found["adamw"]
    assert (adamw.momentum, adamw.nesterov, adamw.eps) == (None, None, 1e-6) and labels == {"optimizer.name"}


def test_a_key_that_no_option_takes_is_a_mistake_still() -> None:
    optimizer = {"name": {"pick": ["adam", "adamw"]}, "momentum": 0.9}
    config = ClassificationConfig.model_validate({"data": DATA, "optimizer": optimizer})
    closed = close_searched(config, RandomPick(random.Random(0))).optimizer
    with pytest.raises(ConfigError, match=r"evaluator\.optimizer\.momentum: adamw? does not take it; leave it out"):
        make_optimizer(closed, [torch.zeros(1, requires_grad=True)])
