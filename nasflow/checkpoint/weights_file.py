"""A model's state dict in a safetensors file. What is no tensor, such as a layer's extra state, is in a file beside."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nasflow.checkpoint.packing import pack, unpack

_TREE = "extra state"


def write_weights(file: Path, weights: Mapping[str, Any]) -> None:
    """Write a state dict.

    Raises:
        CheckpointError: it holds something that a checkpoint can't hold; the message says where.
    """
    tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    # safetensors refuses tensors that share memory or are not contiguous
    save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, file)
    if extra := {name: value for name, value in weights.items() if name not in tensors}:
        text, blocks = pack(extra)
        save_file(blocks, _beside(file), {_TREE: text})


def read_weights(file: Path) -> dict[str, Any]:
    """Return a state dict that was written, on the CPU."""
    weights: dict[str, Any] = load_file(file)
    if (beside := _beside(file)).exists():
        with safe_open(beside, "pt") as extra:
            blocks = {name: extra.get_tensor(name) for name in extra.keys()}  # noqa: SIM118  # it is no dict
            weights |= unpack(extra.metadata()[_TREE], blocks)
    return weights


def _beside(file: Path) -> Path:
    return file.with_suffix(f".extra{file.suffix}")
