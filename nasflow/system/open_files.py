"""The error that a process, or its machine, can open no more files."""

import errno

_LACKING = {errno.EMFILE, errno.ENFILE}


def lacks_files(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, means that no more files can be opened."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _LACKING:
            return True
        error = error.__cause__ or error.__context__
    return False
