"""How many members fit into memory at a time."""

from collections.abc import Sequence

import psutil
import torch

from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.shape_inference import Spec

_SHARE = 0.8  # of free memory, because kernels need some too


def members_that_fit(parts: Sequence[Sequence[Graph]], device: torch.device) -> int:
    """Return how many members as large as the largest fit into the memory that is free now, at least one.

    Each needs its activations twice (values and gradients), its weights' gradients, and its weights once more while
    they are stacked.

    Args:
        parts: the members' graphs of each part of their models.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return max(1, int(_SHARE * free / max(sum(map(_bytes, graphs)) for graphs in zip(*parts, strict=True))))


def _bytes(graph: Graph) -> int:
    activations = sum(
        node.spec.numbers * node.spec.dtype.itemsize for node in graph.nodes if isinstance(node.spec, Spec)
    )
    weights = sum(p.numel() * p.element_size() for p in graph.model.parameters() if p.requires_grad)
    return 2 * activations + 2 * weights
