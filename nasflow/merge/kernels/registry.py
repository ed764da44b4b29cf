"""The kernels that can run a node, the best guess first. Add your own kernel to `KERNELS`."""

from nasflow.merge.kernels.attention import BatchedAttention
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.convolution import DenseConvolution, GroupedConvolution
from nasflow.merge.kernels.dropout import BatchedDropout, CountedDropout
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
    *(BatchedDropout, CountedDropout, BatchedEmbedding, BatchedAttention, MappedLayer, Loop),
]
"""All kernels, in the order in which they are tried."""
_FOR_SHARED = (DenseLinear, DenseConvolution)


def kernels_for(node: Node, shared_input: bool, device: str) -> list[type[Kernel]]:
    """Return the kernels that can run the node on that type of device, the loop last. It runs all but plain values.

    Args:
        shared_input: whether all members read the same first input.
    """
    if ShapeOf.fits(node):
        return [ShapeOf]  # a plain value is not a list of rows, and the loop returns only those
    if node.eval_args is not None:
        return [Loop]  # others know only the arguments in training
    fitting: list[type[Kernel]] = []
    for kernel in KERNELS:
        if kernel in _FOR_SHARED and not shared_input:
            continue
        if kernel is MappedLayer and fitting:
            continue  # not worth measuring where a kernel for this operation fits
        if (kernel.devices is None or device in kernel.devices) and kernel.fits(node):
            fitting.append(kernel)
    return fitting
