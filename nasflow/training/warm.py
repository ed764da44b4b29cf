"""Makes once what each job would make again. Workers import this before their first job; a job is a fork of its worker.

Nothing here may touch a GPU, which a fork can't use after that, or draw random numbers.
"""

from functools import lru_cache
from importlib.metadata import entry_points

import torch
from lightning_fabric.accelerators.xla import _XLA_AVAILABLE
from lightning_fabric.utilities import registry
from torch import nn
from torchmetrics import Metric

from nasflow.evaluator.ready_made.named_metrics import Accuracy
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.native import look_again
from nasflow.training.lightning_loop import quiet


def warm() -> None:
    """Make it all; the second time that takes no time."""
    quiet()
    registry.entry_points(group="pytorch_lightning.callbacks_factory")  # type: ignore[attr-defined]
    bool(_XLA_AVAILABLE)  # looks for the package, and does not import it
    Accuracy(2)  # torchmetrics looks for what it draws with
    isinstance({}, Metric)  # asks all subclasses, once for each type
    CostModel(torch.device("cpu"))  # loads native kernels, and reads measured costs
    look_again()  # a job without native kernels says so in its log
    trace(nn.Linear(1, 1, device="meta"), Spec.batch(torch.zeros(2, 1)))  # torch imports much for the first one


# Each Trainer looks for callbacks that installed packages declare, and reads the metadata of all packages for that.
registry.entry_points = lru_cache(entry_points)  # type: ignore[assignment,attr-defined]

warm()
