"""How a job uses its device: the precision of its products, its algorithms, and its part of the memory."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from nasflow.config.evaluator.training import TrainingConfig
from nasflow.system.gpu_share import gpu_share


@contextmanager
def device_settings(config: TrainingConfig, devices: int = 1) -> Iterator[None]:
    """Within this, torch computes as an evaluator asks. Enter it before the process has used its GPUs.

    Args:
        config: the evaluator.
        devices: how many GPUs the process uses, at most those that it sees.
    """
    has_gpu = torch.cuda.is_available()
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(config.matmul_precision)
        if has_gpu:
            cudnn = torch.backends.cudnn
            for name in ("allow_tf32", "deterministic", "benchmark"):
                stack.callback(setattr, cudnn, name, getattr(cudnn, name))
            cudnn.allow_tf32 = config.matmul_precision != "highest"
            if config.deterministic:
                _be_deterministic(stack)
            if (share := gpu_share()) < 1:
                for index in range(min(devices, torch.cuda.device_count())):
                    torch.cuda.set_per_process_memory_fraction(share, index)  # more is this job's own want of memory
            sys.stdout.write(
                f"{torch.cuda.get_device_name()}: precision {config.precision}, "
                f"matmul_precision {config.matmul_precision}, deterministic {config.deterministic}, "
                f"{share:.0%} of its memory\n"
            )
        yield


def _be_deterministic(stack: ExitStack) -> None:
    """Choose deterministic algorithms; torch warns of operations that have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS begins
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    former = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    stack.callback(torch.use_deterministic_algorithms, former, warn_only=only_warned)
    torch.use_deterministic_algorithms(True, warn_only=True)
    options: Any = torch.utils.deterministic
    stack.callback(setattr, options, "fill_uninitialized_memory", options.fill_uninitialized_memory)
    options.fill_uninitialized_memory = False  # all that is read here is written before
