"""What is wrong with a loader that gives no batch, by the error that it raises."""

import pickle
import re
import traceback
from collections.abc import Sequence

from nasflow.errors import InfrastructureError

_NOT_TOGETHER = (
    "default_collate: batch must contain",
    "stack expects each tensor to be equal size",
    "each element in list of batch should be of equal size",
)
_UNEQUAL_IN_WORKERS = "Trying to resize storage that is not resizable"
_ENDED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: Terminated")
_COLLATE = "torch/utils/data/_utils/collate.py"
_SENDING = ("torch/utils/data/dataloader.py", "multiprocessing/reduction.py")


def why_not_loaded(target: str, error: BaseException) -> str | None:
    """Return what is wrong with the data of `target`, and how to mend it; None if the error does not tell that.

    Where it was raised tells torch's own errors from those of the data set's code.
    """
    text = str(error)
    files = [frame.filename.replace("\\", "/") for frame in traceback.extract_tb(error.__traceback__)]
    is_of_torch = isinstance(error, TypeError | RuntimeError) and _place(text, files).endswith(_COLLATE)
    if is_of_torch and (why := _why_not_together(text)):
        return (
            f"samples of {target} can't be put together in a batch ({why}); let them be tensors, arrays or numbers of "
            "equal sizes, or give the loader a collate_fn that makes batches of them"
        )
    is_sent = all(any(file.endswith(place) for file in files) for place in _SENDING)
    if is_sent and isinstance(error, pickle.PicklingError | AttributeError | TypeError):
        return (
            f"the data set of {target} can't be sent to worker processes ({text.partition(chr(10))[0]}); let it hold "
            "functions of a module in place of lambdas, and no open files, or take num_workers=0"
        )
    return None


def refuse_ended_worker(error: BaseException) -> None:
    """Raise InfrastructureError if a worker process of a loader was asked to end from outside (SIGTERM).

    torch raises that in whatever code runs at that moment, such as a step of some trial.
    """
    if isinstance(error, RuntimeError) and _ENDED.match(str(error)):
        raise InfrastructureError(f"a process that loads data was asked to end: {error}") from error


def _place(text: str, files: Sequence[str]) -> str:
    """Return the file that raised an error; one of a worker process has its traceback in its text."""
    there = (
        re.findall(r'^ *File "(.+)", line \d+', text, re.MULTILINE) if "in DataLoader worker process" in text else []
    )
    return there[-1].replace("\\", "/") if there else next(reversed(files), "")


def _why_not_together(text: str) -> str | None:
    if _UNEQUAL_IN_WORKERS in text:
        return "their tensors have unequal sizes"
    lines = [line for line in text.splitlines() if any(said in line for said in _NOT_TOGETHER)]
    return lines[-1].strip().removeprefix("TypeError: ").removeprefix("RuntimeError: ") if lines else None
