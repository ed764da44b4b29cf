"""Which kernels can run a node, the best guess first. A kernel of one's own is added to `KERNELS`."""

from nasflow.merge.kernels.attention import BatchedAttention
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.convolution import DenseConvolution, GroupedConvolution
from nasflow.merge.kernels.dropout import BatchedDropout
from nasflow.merge.kernels.embedding import BatchedEmbedding
from nasflow.merge.kernels.items import Item
from nasflow.merge.kernels.linear import BatchedLinear, DenseLinear
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.kernels.mapped import MappedLayer
from nasflow.merge.kernels.norm import BatchedBatchNorm, BatchedGroupNorm, BatchedLayerNorm
from nasflow.merge.kernels.pointwise import Pairwise, Pointwise
from nasflow.merge.kernels.pooling import BatchedPool
from nasflow.merge.kernels.shaping import Concatenation, ShapeOf, Shaping
from nasflow.merge.trace.node import Node

KERNELS: list[type[Kernel]] = [
    *(Pointwise, Pairwise, BatchedLinear, DenseLinear, DenseConvolution, GroupedConvolution),
    *(BatchedBatchNorm, BatchedLayerNorm, BatchedGroupNorm, BatchedPool, Shaping, Concatenation, ShapeOf, Item),
    *(BatchedDropout, BatchedEmbedding, BatchedAttention, MappedLayer, Loop),
]
_FOR_SHARED = (DenseLinear, DenseConvolution)


def kernels_for(node: Node, shared_input: bool, device: str) -> list[type[Kernel]]:
    """Kernels that can run the node on a device of that type; the loop, which runs all but plain values, is the last.

    Args:
        shared_input: all members read the same first input.
    """
    if ShapeOf.fits(node):
        return [ShapeOf]  # a plain value is no row of a list, which is all that the loop gives
    fitting: list[type[Kernel]] = []
    for kernel in KERNELS:
        if kernel in _FOR_SHARED and not shared_input:
            continue
        if kernel is MappedLayer and fitting:
            continue  # what has a kernel of its own is not worth measuring this one too
        if (kernel.devices is None or device in kernel.devices) and kernel.fits(node):
            fitting.append(kernel)
    return fitting
