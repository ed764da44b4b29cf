"""What is wrong with a loader that gives no batch, by the error that it raises."""

import pickle

_NOT_TOGETHER = (
    "default_collate: batch must contain",
    "stack expects each tensor to be equal size",
    "each element in list of batch should be of equal size",
)
_UNEQUAL_IN_WORKERS = "Trying to resize storage that is not resizable"


def why_not_loaded(target: str, error: BaseException) -> str | None:
    """Return what is wrong with the data of `target`, and how to mend it; None if the error does not tell that.

    A worker process's error has its traceback in its text.
    """
    text = str(error)
    if isinstance(error, TypeError | RuntimeError) and (why := _why_not_together(text)):
        return (
            f"samples of {target} can't be put together in a batch ({why}); let them be tensors, arrays or numbers of "
            "equal sizes, or give the loader a collate_fn that makes batches of them"
        )
    if isinstance(error, pickle.PicklingError) or (isinstance(error, AttributeError | TypeError) and "pickle" in text):
        return (
            f"the data set of {target} can't be sent to worker processes ({text.partition(chr(10))[0]}); let it hold "
            "functions of a module in place of lambdas, and no open files, or take num_workers=0"
        )
    return None


def _why_not_together(text: str) -> str | None:
    if _UNEQUAL_IN_WORKERS in text:
        return "their tensors have unequal sizes"
    lines = [line for line in text.splitlines() if any(said in line for said in _NOT_TOGETHER)]
    return lines[-1].strip().removeprefix("TypeError: ").removeprefix("RuntimeError: ") if lines else None
