"""Inner loops in C for small float32 tensors on one core, where starting a torch call takes longer than running it.

Other rooms import the names below from here, and none of this room's files. kernels.c is compiled with the machine's
own compiler when a kernel is first needed, not on import; where that fails, torch does the same work.
"""

from nasflow.native.activations import activate, activate_backward
from nasflow.native.adam import adam_step
from nasflow.native.batch_norm import Statistics, batch_norm_backward, batch_statistics, kept_statistics, normalize
from nasflow.native.compiling import COMPILERS, find_compiler
from nasflow.native.conv_1x1 import OneByOne
from nasflow.native.cross_entropy import cross_entropies, cross_entropies_and_gradients
from nasflow.native.library import is_available, look_again
from nasflow.native.program import (
    BY_OUTPUT,
    activation,
    activation_backward,
    as_programs,
    fits,
    products,
    sums,
)
from nasflow.native.softmax import log_softmax, log_softmax_backward

__all__ = [
    "BY_OUTPUT",
    "COMPILERS",
    "OneByOne",
    "Statistics",
    "activate",
    "activate_backward",
    "activation",
    "activation_backward",
    "adam_step",
    "as_programs",
    "batch_norm_backward",
    "batch_statistics",
    "cross_entropies",
    "cross_entropies_and_gradients",
    "find_compiler",
    "fits",
    "is_available",
    "kept_statistics",
    "log_softmax",
    "log_softmax_backward",
    "look_again",
    "normalize",
    "products",
    "sums",
]
