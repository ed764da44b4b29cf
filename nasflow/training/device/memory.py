"""Want of memory, in which all that a process computes has a part."""

import gc
import traceback

import torch

_TEXTS = (
    "out of memory",
    "ALLOC_FAILED",  # of cuBLAS and cuDNN
    "ALLOCATION_FAILED",
    "unable to find an engine",  # of cuDNN, whose engines have no room to work in
    "can't allocate memory",  # on the host
    "not enough memory",
)


def is_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory, whatever asked for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def release_memory() -> None:
    """Give a GPU's memory back that nothing uses any more."""
    gc.collect()  # a traceback keeps what the functions in it have made
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free_failed(error: BaseException) -> None:
    """Free what a step that failed has computed, which the frames of its error keep, and those of what caused that."""
    cause: BaseException | None = error
    freed: list[BaseException] = []
    while cause is not None and cause not in freed:  # an error may be its own cause
        traceback.clear_frames(cause.__traceback__)
        freed.append(cause)
        cause = cause.__cause__
    release_memory()
