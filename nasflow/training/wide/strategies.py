"""Lightning's strategies for a trial on several devices."""

from typing import Any

import torch
from pytorch_lightning.overrides.distributed import prepare_for_backward
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from nasflow.config.evaluator.parallel import ParallelConfig

_STEPS = ("training_step", "validation_step")


def make_strategy(config: ParallelConfig) -> ParallelStrategy:
    """Return the strategy of a rank, whose process group is there already."""
    if config.strategy == "ddp":
        return DDPStrategy(find_unused_parameters=True)  # a candidate may have layers that it does not use
    return ModelParallelStrategy(data_parallel_size=config.ranks, tensor_parallel_size=1)


def shard(module: nn.Module, mesh: Any) -> None:
    """Divide the weights of a module among the ranks of a mesh; a step has all of them while it runs.

    They are one group, because a step may use a layer's weights without calling the layer. Layers that are sharded
    already stay groups of their own.
    """
    fully_shard(module, mesh=mesh)
    for step in _STEPS:
        register_fsdp_forward_method(module, step)


def reshard(module: nn.Module) -> None:
    """Give up the weights of other ranks that the last forward has left here."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def before_backward(strategy: Strategy, loss: torch.Tensor) -> None:
    """Let DDP know of which loss the next backward is."""
    if isinstance(strategy.model, DistributedDataParallel):
        prepare_for_backward(strategy.model, loss)
