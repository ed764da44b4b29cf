"""Any state dict as plain JSON beside named tensors, so that nothing is ever pickled."""

from typing import Any

import torch

from nasflow.errors import CheckpointError


def pack(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a tree of dicts, lists, tuples, tensors and JSON scalars into (JSON, tensors by name).

    Dicts keep keys that are no strings, tuples stay tuples, NaN and infinity survive.

    Raises:
        CheckpointError: the tree holds something else; the message says where.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _pack(tree, "", tensors), tensors


def unpack(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The tree that `pack` took apart."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(unpack(item, tensors) for item in items)
        case {"$dict": pairs}:
            return {unpack(key, tensors): unpack(value, tensors) for key, value in pairs}
        case {"$float": text}:
            return float(text)
    return {key: unpack(value, tensors) for key, value in tree.items()}


def _pack(tree: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        name = path
        while name in tensors:  # {"a/b": ...} beside {"a": {"b": ...}}
            name += "'"
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": name}
    if isinstance(tree, tuple):
        return {"$tuple": [_pack(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]}
    if isinstance(tree, list):
        return [_pack(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]
    if isinstance(tree, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: _pack(value, f"{path}/{key}", tensors) for key, value in tree.items()}
        keys: dict[str, torch.Tensor] = {}
        pairs = [[_pack(key, f"{path}/{key}", keys), _pack(tree[key], f"{path}/{key}", tensors)] for key in tree]
        if keys:
            raise CheckpointError(f"state at '{path or '/'}' has a tensor in a key, which a checkpoint can't hold")
        return {"$dict": pairs}
    if isinstance(tree, float) and not float("-inf") < tree < float("inf"):
        return {"$float": str(tree)}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise CheckpointError(f"state at '{path or '/'}' is a {type(tree).__name__}, which a checkpoint can't hold")
