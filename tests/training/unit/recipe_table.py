"""Every key of a ready-made evaluator's recipe with a few values, and recipes in which any two of them meet."""

import random
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from nasflow.config.search import EvaluatorConfig
from tests.training.jobs import evaluator

Recipe = dict[str, str]
"""The name of a value by key."""

LR = {"float": [1e-3, 1e-1], "log": True}
_TRIES = 60  # recipes drawn for each that is tested: nearly as few as there can be, 72
_METRICS = ["accuracy", "f1", "precision", "recall", "auroc", {"name": "top2", "top_k": 2}]
_TARGETS = "../../evaluator/targets.py"

TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "rows": {"data": {"target": "spaces.py:blobs"}},
        "a batch of one": {"data": {"target": "spaces.py:blobs", "params": {"batch_size": 21}}},
        "unbalanced": {"data": {"target": "spaces.py:unbalanced"}},
        "images": {"data": {"target": "spaces.py:images"}},
        "numbers": {"kind": "regression", "data": {"target": "fused_spaces.py:numbers"}},
    },
    "optimizer": {
        "sgd": {"optimizer": {"name": "sgd", "momentum": {"float": [0.0, 0.9]}}},
        "nesterov": {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}},
        "adam": {"optimizer": {"name": "adam", "betas": [{"float": [0.8, 0.9]}, 0.99]}},
        "adamw or sgd": {"optimizer": {"name": {"pick": ["adamw", "sgd"]}}},
        "rmsprop": {"optimizer": {"name": "rmsprop", "momentum": {"pick": [0.0, 0.5]}}},
        "adagrad": {"optimizer": {"name": "adagrad"}},
        "nadam or radam": {"optimizer": {"name": {"pick": ["nadam", "radam"]}}},
        "adamax": {"optimizer": {"name": "adamax"}},
        "by path": {"optimizer": {"target": "torch.optim:SGD", "params": {"momentum": 0.5, "dampening": 0.25}}},
    },
    "decay": {
        "default": {},
        "searched": {"optimizer": {"weight_decay": {"float": [0.0, 0.2]}}},
        "by groups": {"optimizer": {"weight_decay": 0.2, "no_decay": ["norm", "bias"]}},
    },
    "schedule": {
        "constant": {},
        "cosine by step": {"schedule": {"name": "cosine", "interval": "step", "warmup_steps": 3}},
        "restarts": {"schedule": {"name": "cosine", "restart_epochs": 1, "restart_mult": {"pick": [1, 2]}}},
        "step": {"schedule": {"name": "step", "step_size": 2, "warmup_epochs": {"int": [0, 2]}}},
        "exponential by step": {"schedule": {"name": "exponential", "interval": "step", "gamma": 0.9}},
        "polynomial or linear": {"schedule": {"name": {"pick": ["polynomial", "linear"]}, "power": 2.0}},
        "one cycle": {"schedule": {"name": "one_cycle", "interval": "step", "rise": {"float": [0.2, 0.6]}}},
        "plateau": {"schedule": {"name": "plateau", "patience": {"int": [0, 1]}}},
    },
    "loss": {
        "default": {},
        "smoothed": {"label_smoothing": {"float": [0.0, 0.3]}},
        "by path": {"loss": {"target": "torch.nn:MultiMarginLoss", "params": {"margin": {"float": [0.5, 2.0]}}}},
        "of numbers": {"loss": {"pick": ["mse", "huber", "mae"]}},
        "a user's": {"loss": {"target": f"{_TARGETS}:Focal", "params": {"gamma": 1.5}}},
    },
    "weights": {
        "none": {},
        "balanced": {"class_weights": "balanced"},
        "by class": {"class_weights": [1, {"float": [0.5, 2.0]}, 0]},
    },
    "mix": {
        "none": {},
        "mixup": {"mixup": {"alpha": {"float": [0.2, 1.0]}}},
        "both": {"mixup": {}, "cutmix": {}},
    },
    "metrics": {"default": {}, "all": {"metrics": _METRICS}},
    "clip": {
        "none": {},
        "norm": {"gradient_clip_val": 0.3},
        "value": {"gradient_clip_val": {"pick": [0.01, 0.1]}, "gradient_clip_algorithm": "value"},
        "searched": {"gradient_clip_val": {"float": [0.1, 2.0]}},
    },
    "steps": {
        "1": {},
        "3": {"accumulate_grad_batches": 3},
        "of whole epochs": {"accumulate_grad_batches": 64},
        "searched": {"accumulate_grad_batches": {"pick": [1, 2]}},
    },
    "ema": {"none": {}, "fixed": {"ema": {"decay": 0.5}}, "searched": {"ema": {"decay": {"float": [0.3, 0.9]}}}},
    "limit": {"none": {}, "both": {"limit_batches": 2}, "parts": {"limit_batches": {"train": 3, "validation": 1}}},
    "validation": {"each epoch": {}, "every other": {"validate_every": 2}},
    "several": {"no": {}, "folds": {"folds": 2}, "repeats": {"repeats": 2}},
    "share": {"all": {}, "some": {"data": {"fraction": 0.6}}},
    "end": {
        "all": {},
        "for now": {"stop_after": 2},
        "early": {"early_stopping": {"metric": "val_loss", "patience": 1}},
        "searched": {"epochs": {"pick": [2, 4]}},
    },
}


_RULES: list[tuple[str, set[str], str, set[str]]] = [
    ("data", {"numbers"}, "loss", {"default", "of numbers"}),
    ("data", {"numbers"}, "weights", {"none"}),
    ("data", {"numbers"}, "mix", {"none"}),
    ("data", {"numbers"}, "metrics", {"default"}),
    ("loss", {"of numbers"}, "data", {"numbers"}),
    ("loss", {"of numbers"}, "weights", {"none"}),
    ("loss", {"of numbers"}, "mix", {"none"}),
    ("loss", {"of numbers"}, "metrics", {"default"}),
    ("loss", {"by path", "a user's"}, "weights", {"none"}),
    ("mix", {"both"}, "data", {"images"}),
]
"""A key with some values lets another have some of its values only; the config, or the data, refuse others."""


def space_of(one: Recipe) -> str:
    """The space whose models fit a recipe's data."""
    return {
        "images": "fused_spaces.py:images",
        "numbers": "fused_spaces.py:valued",
        "a batch of one": "spaces.py:net",  # no batch norm takes it
    }.get(one["data"], "fused_spaces.py:mixed")


def config_of(one: Recipe) -> EvaluatorConfig:
    """A recipe's evaluator."""
    values: dict[str, Any] = {"precision": "64-true", "epochs": 4, "optimizer": {"lr": LR}}
    for key, name in one.items():
        for part, value in TABLE[key][name].items():
            values[part] = values.get(part, {}) | value if part in ("optimizer", "data") else value
    return evaluator(**values)


def recipe(rng: random.Random, start: Iterable[tuple[str, str]] = ()) -> Recipe | None:
    """Draw the values of all keys but those that there are to start with; None if none fit them."""
    drawn = dict(start)
    for key in rng.sample(sorted(TABLE.keys() - drawn.keys()), len(TABLE) - len(drawn)):
        names = [name for name in TABLE[key] if _fits(drawn | {key: name})]
        if not names:
            return None
        drawn[key] = rng.choice(names)
    return {key: drawn[key] for key in TABLE}


def recipes(seed: int) -> Iterator[Recipe]:
    """Draw recipes until any two values that fit each other have met."""
    rng = random.Random(seed)
    levels = [[(key, name) for name in names] for key, names in TABLE.items()]
    pairs = [(a, b) for one, other in combinations(levels, 2) for a in one for b in other]
    rng.shuffle(pairs)
    pairs.sort(key=lambda pair: -len(TABLE[pair[0][0]]) * len(TABLE[pair[1][0]]))  # what needs most recipes first
    missing = {pair for pair in pairs if _fits(dict(pair))}
    for first in pairs:
        if first not in missing:
            continue
        drawn = [one for _ in range(_TRIES) if (one := recipe(rng, first))]
        best = max(drawn, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        yield best


def _pairs(one: Recipe) -> set[tuple[tuple[str, str], ...]]:
    return set(combinations([(key, one[key]) for key in TABLE], 2))


def _fits(drawn: Recipe) -> bool:
    return all(drawn.get(key) not in names or drawn.get(other, "") in {"", *fit} for key, names, other, fit in _RULES)
