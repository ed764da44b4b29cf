"""Faults of a GPU after which its process can compute nothing there, whichever of its members has caused them."""

import torch

from nasflow.errors import NasflowError

_OF_HARDWARE = ("uncorrectable", "unavailable", "device lost")


class DeviceFaultError(BaseException):
    """This process can't use its GPU any more. It is no Exception, so nothing takes it for a member's own failure.

    Attributes:
        is_hardware: whether the GPU itself has failed, not what was computed there.
    """

    def __init__(self, message: str):
        super().__init__(message)
        self.is_hardware = names_hardware(message)


def names_hardware(message: str) -> bool:
    """Whether what CUDA says is that the GPU itself has failed."""
    return any(words in message for words in _OF_HARDWARE)


def is_of_hardware(error: BaseException) -> bool:
    """Whether an error that came up in any code, as in NCCL, says that a GPU itself has failed."""
    return isinstance(error, RuntimeError) and "cuda" in str(error).lower() and names_hardware(str(error))


def refuse_fault(error: BaseException) -> None:
    """Raise DeviceFaultError if the GPU can't be used any more since an error. On a CPU, do nothing.

    Kernels run later than they are called, so whose code an error comes up in says nothing about its cause.
    """
    if isinstance(error, NasflowError) or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_allocated(index):  # else this job does not use it, and asking would take its memory
                torch.cuda.synchronize(index)
    except RuntimeError as fault:
        headline = str(fault).strip().partition("\n")[0]
        raise DeviceFaultError(headline) from error
