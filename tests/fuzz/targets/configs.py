"""Search configs: a YAML file, and the parameters of a deployment."""

import json
import random
from pathlib import Path
from typing import Any

from nasflow.config.search import SearchConfig, load_config, parse_config
from nasflow.errors import SpaceError, UserError
from nasflow.evaluator import data as shipped_data
from nasflow.evaluator.loading.data_source import fingerprint, load_data
from nasflow.evaluator.searched_values import close_searched
from nasflow.space.pick import RandomPick
from tests.fuzz.mutate import reshape_json
from tests.fuzz.target import Target

ROOT = Path(__file__).parents[3]
_SHIPPED = f"{shipped_data.__name__}:"
_FULL: dict[str, Any] = {
    "name": "full",
    "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10, "widths": [8, 16]}},
    "evaluator": {
        "kind": "classification",
        "data": {"target": f"{_SHIPPED}DigitsRows", "params": {"batch_size": {"pick": [32, 64]}, "val_fraction": 0.2}},
        "epochs": {"int": [1, 4], "log": True},
        "early_stopping": {"metric": "val_loss", "direction": "minimize", "patience": 2},
        "optimizer": {
            "name": {"pick": ["adam", "sgd"]},
            "lr": {"float": [1e-4, 0.1], "log": True},
            "betas": [0.9, 0.99],
        },
        "schedule": {"name": "cosine", "warmup_epochs": 1},
    },
    "strategy": {"kind": "tpe", "params": {"n_startup_trials": 4}},
    "objectives": [{"metric": "val_accuracy"}, {"metric": "parameters", "direction": "minimize"}],
    "budget": {"rounds": 2, "trials_per_round": 8, "hours": 0.5},
    "begin_with": [{"depth": 1, "width": 8}],
    "recurring": {"study": "warm_start", "best": 3},
    "merge": {"max_members": 4},
    "pruner": {"kind": "median"},
    "training_service": {
        "kind": "ssh",
        "hosts": [
            {"host": "a", "password": {"env": "NASFLOW_FUZZ"}, "key_file": "~/.ssh/id"},
            {"host": "b", "port": 22},
        ],
        "code": {"max_files": 10},
    },
    "checkpoint": {"every_epochs": 1, "keep": 2, "url": "s3://bucket/folder", "best": {"metric": "val_loss"}},
    "loggers": ["csv"],
    "store": "sqlite:///nasflow.db",
    "work_dir": "~/runs",
    "seed": 7,
}
_FILES = [*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("deployments/cells.yaml"), *ROOT.glob("deployments/digits.yaml")]
_YAML = [*(file.read_bytes() for file in sorted(_FILES)), json.dumps(_FULL, indent=1).encode()]
_JSON = [
    json.dumps(_FULL).encode(),
    *(json.dumps(load_config(file).model_dump(mode="json")).encode() for file in sorted(_FILES)),
]
_TOKENS = (
    *(
        b"!!int ",
        b"!!float ",
        b"!!bool ",
        b"!!timestamp ",
        b"!!binary ",
        b"!!set ",
        b"!!omap ",
        b"!!python/name:os.system ",
    ),
    *(
        b"!<tag:yaml.org,2002:null> ",
        b"&a ",
        b"*a",
        b"*b",
        b"<<: *a\n",
        b"<<: [*a, *a]\n",
        b"? ",
        b"- ",
        b"--- ",
        b"...\n",
    ),
    *(
        b"%YAML 1.1\n",
        b"%TAG ! tag:x,2000:\n",
        b"[",
        b"]",
        b"{",
        b"}",
        b"{a: ",
        b"\t",
        b"|\n ",
        b">-\n ",
        b'"',
        b"'",
        b"#",
    ),
    *(
        b"2024-13-45",
        b"2024-01-01",
        b"2001-12-14t21:59:43.10+99:99",
        b"1:60:99",
        b"0o9",
        b"0b2",
        b".inf",
        b".nan",
        b"~",
    ),
    *(
        b'"\\ud800"',
        b'"\\0"',
        b"\\x00",
        b"\xe9",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\0",
        b"=",
        b"<<",
    ),
    *(
        b"work_dir: ~nobodyhere/x\n",
        b"base_dir: ~nobodyhere\n",
        b"batch_size: 0\n",
        b"store: ''\n",
        b"name: ",
        b"kind: ",
    ),
    b"x: &a [&b [1, 1], *b, *b, *b]\n",
)


def _read_yaml(data: bytes, folder: Path) -> int:
    file = folder / "search.yaml"
    file.write_bytes(data)
    return _use(load_config(file))


def _read_json(data: bytes, folder: Path) -> int:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return 0  # Prefect's server reads it, and has its own limits
    if not isinstance(values, dict):
        return 0
    return _use(parse_config({"base_dir": folder, **values}))


def _use(config: SearchConfig) -> int:
    """Record a config as the store does, read it again, draw its searched values, and load its data if shipped."""
    recorded = json.dumps(config.model_dump(mode="json"), allow_nan=False).encode()
    again = parse_config(json.loads(recorded))
    assert again.model_dump(mode="json") == config.model_dump(mode="json")
    try:
        closed = close_searched(config.evaluator, RandomPick(random.Random(0)))
    except SpaceError:
        return 1
    fingerprint(closed.data)
    if closed.data.target.startswith(_SHIPPED):
        load_data(closed.data, config.base_dir)
    return 1


YAML = Target("config YAML", _YAML, _read_yaml, (UserError,), _TOKENS, reshape_json)
JSON = Target("config JSON", _JSON, _read_json, (UserError,), _TOKENS, reshape_json)
