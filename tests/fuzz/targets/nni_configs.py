"""Configs of NNI experiments: YAML files, and the search spaces beside them."""

import json
import random
from pathlib import Path

import yaml

from nasflow.config.from_nni.experiment import from_nni
from nasflow.errors import UserError
from tests.fuzz.mutate import reshape_json
from tests.fuzz.target import Target

_SAMPLES = Path(__file__).parents[2] / "config" / "from_nni" / "samples"
_SPACE = json.loads((_SAMPLES / "search_space.json").read_text())
_FILES = [yaml.safe_load(file.read_text()) for file in sorted(_SAMPLES.glob("*.yml"))]
_SEEDS = [
    json.dumps(
        {key: value for key, value in config.items() if not key.startswith("searchSpace")} | {"searchSpace": _SPACE}
    )
    for config in _FILES
]
_TOKENS = (
    b"[]",
    b"{}",
    b"null",
    b"-1",
    b"1e999",
    b".inf",
    b"!!timestamp 2001-01-01",
    b'"\\u001b[31m"',
    b"platform: aml",
)


def _reshape(rng: random.Random, data: bytes) -> bytes:
    return reshape_json(rng, data)


def _read(data: bytes, folder: Path) -> int:
    file = folder / "config.yml"
    file.write_bytes(data)
    translation = from_nni(file)
    printed = yaml.safe_load(translation.text)
    assert isinstance(printed, dict)
    assert all(note.isprintable() for note in translation.notes)
    assert translation.text.replace("\n", "").isprintable()
    return len(printed)


TARGET = Target("NNI config", [seed.encode() for seed in _SEEDS], _read, (UserError,), _TOKENS, _reshape)
