"""Checkpoints: the files of states."""

import json
import logging
import random
import tempfile
from pathlib import Path

import torch

from nasflow.checkpoint.bundle import NewerCheckpointError
from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import CheckpointError
from tests.fuzz.mutate import odd_tree, reshape_json
from tests.fuzz.target import Target

_TRIAL = "00003"
_STATE = {
    "weights": {"0.weight": torch.arange(12.0).reshape(3, 4), "0.bias": torch.zeros(3, dtype=torch.float64)},
    "epochs": [1, 2.5, None, True, "text", float("nan")],
    "pair": (1, {2: "two"}),
    "metrics": {f"val_{n}": n / 7 for n in range(20)},
}


def _file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return CheckpointStore(Path(folder) / _TRIAL).save(3, _STATE).read_bytes()


def _reshape(rng: random.Random, data: bytes) -> bytes:
    """Change the header: a table of tensors in JSON, with tables in JSON as text in it."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        tables = header["__metadata__"]
    except (ValueError, KeyError, TypeError):
        return data
    if isinstance(tables, dict) and tables and rng.random() < 0.7:
        name = rng.choice(sorted(tables))
        tables[name] = reshape_json(rng, str(tables[name]).encode(errors="replace")).decode()
    else:
        header = odd_tree(rng, header)
    text = json.dumps(header).encode()
    length = rng.choice((len(text), len(text), len(text), 0, 2**40, 2**64 - 1))
    return length.to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]


def _read(data: bytes, folder: Path) -> int:
    logging.getLogger("nasflow").setLevel(logging.ERROR)
    store = CheckpointStore(folder / _TRIAL)
    store.path(3).parent.mkdir()
    store.path(3).write_bytes(data)
    state = store.load(3)
    assert store.load_newest() is not None
    return len(state)


_TOKENS = (
    b'{"$tensor":["0",0,[3]]}',
    b'{"$dict":[',
    b'{"$tuple":',
    b'"data_offsets":[0,8]',
    b"[",
    b"]",
    b"\0" * 8,
    b"F64",
    b"\xff" * 8,
)
TARGET = Target("checkpoint", [_file()], _read, (CheckpointError, NewerCheckpointError), _TOKENS, _reshape)
