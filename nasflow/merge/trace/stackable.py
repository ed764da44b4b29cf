"""Finds models with parameters that can't be stacked."""

import inspect
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.trace.graph import Graph
from nasflow.tensors import address


def why_not_stacked(model: nn.Module) -> str | None:
    """Return why the model's parameters can't be stacked, or None. Each needs its own memory and a dense gradient."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            return f"the gradient of '{name}' is sparse"
    end, first = 0, ""
    last_trains = False
    for start, stop, trains, name in sorted(set(_extents(model))):
        if start < end and (trains or last_trains):
            return f"'{first}' and '{name}' share memory"
        last_trains = trains or (start < end and last_trains)
        end, first = max(end, stop), name
    return None


def why_not_looked_up(graph: Graph) -> str | None:
    """Return why a parameter in which a function looks up rows can't be stacked, or None."""
    lookups = [node for node in graph.nodes if node.target in (F.embedding, F.embedding_bag)]
    sparse = [inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments.get("sparse") for n in lookups]
    return "the gradient of a look-up is sparse" if any(sparse) else None


def _extents(model: nn.Module) -> Iterator[tuple[int, int, bool, str]]:
    """Yield the first byte, the end, whether it is trained, and the name of each tensor that the model holds."""
    seen: set[int] = set()
    for path, layer in model.named_modules():
        for fields in (layer._parameters, layer._buffers, layer.__dict__):
            for name, tensor in fields.items():
                if not isinstance(tensor, torch.Tensor) or id(tensor) in seen or not _has_memory(tensor):
                    continue
                seen.add(id(tensor))
                reach = sum(
                    (size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
                )
                start = address(tensor)
                place = f"{path}.{name}" if path else name
                yield start, start + (reach + 1) * tensor.element_size(), tensor.requires_grad, place


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0 and not tensor.is_meta
