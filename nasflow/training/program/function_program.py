"""The process of a trial of `kind: function`: `python -m nasflow.training.program.function_program FILE`.

FILE says what to train (`function.Task`).
"""

import sys
from pathlib import Path

from nasflow.system.gc_control import uncollected


def main() -> None:
    """Train the trial of the file that the command line names."""
    with uncollected():
        from nasflow.training.program.function import run  # noqa: PLC0415 - slow
    run(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
