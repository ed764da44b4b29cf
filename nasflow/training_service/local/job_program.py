"""The program that runs one job: `python -m nasflow.training_service.local.job_program RUNNER JOB_JSON`.

`JOB_JSON` is `<root>/jobs/<job_id>/job.json`. Standard input is one line of JSON: the secrets that the job needs.
"""

import json
import os
import sys
from pathlib import Path

from nasflow.config.secret.secrets import give
from nasflow.job.spec import DEVICE_FAULT
from nasflow.load_target import load_target
from nasflow.training_service.machine.job_process import flush, show_stacks


def main() -> None:
    """Run the job and exit with the runner's exit code."""
    show_stacks()
    give(json.loads(sys.stdin.readline()))
    runner, job = sys.argv[1], Path(sys.argv[2])
    code = load_target(runner, job.parents[2])(job)
    if code == DEVICE_FAULT:  # what frees the GPU's memory at the end of a process would fail, too
        flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
