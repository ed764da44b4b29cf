"""How many members fit into memory at a time."""

from collections.abc import Sequence

import torch

from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.shape_inference import Spec
from nasflow.system.gpu_share import gpu_share
from nasflow.system.memory import available_memory

_SHARE = 0.8  # of free memory, because kernels need some too
_OF_WEIGHTS = 5  # copies: while they are stacked, gradients, and of an optimizer as Adam two states and scratch


def members_that_fit(parts: Sequence[Sequence[Graph]], device: torch.device, kept: int = 0) -> int:
    """Return how many members as large as the largest fit into the memory that is free now, at least one.

    Each needs its activations twice (values and gradients), and five times its weights: once more while they are
    stacked, their gradients, and two states and scratch of its optimizer.

    Args:
        parts: the members' graphs of each part of their models.
        kept: further tensors that each has of every weight, such as its average, or gradients that are accumulated.
    """
    largest = max(sum(_bytes(graph, kept) for graph in graphs) for graphs in zip(*parts, strict=True))
    return max(1, int(_SHARE * _free(device) / largest))


def _free(device: torch.device) -> int:
    """Return the bytes that this process can still get; on a GPU that several jobs share, of its own part."""
    if device.type != "cuda":
        return available_memory()
    free, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    kept = torch.cuda.memory_reserved(device) - used  # by torch, for what it is asked for next
    return int(max(0, min(free + kept, gpu_share() * total - used)))


def _bytes(graph: Graph, kept: int) -> int:
    activations = sum(
        node.spec.numbers * node.spec.dtype.itemsize for node in graph.nodes if isinstance(node.spec, Spec)
    )
    weights = sum(p.numel() * p.element_size() for p in graph.model.parameters() if p.requires_grad)
    return 2 * activations + (_OF_WEIGHTS + kept) * weights
