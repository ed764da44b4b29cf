"""The program that runs one job: `python -m nasflow.training_service.local.job_program RUNNER JOB_JSON`.

`JOB_JSON` is `<root>/jobs/<job_id>/job.json`. Standard input is one line of JSON: the secrets that the job needs.
"""

import json
import sys
from pathlib import Path

from nasflow.config.secret.secrets import give
from nasflow.load_target import load_target
from nasflow.training_service.machine.job_process import show_stacks


def main() -> None:
    """Run the job and exit with the runner's exit code."""
    show_stacks()
    give(json.loads(sys.stdin.readline()))
    runner, job = sys.argv[1], Path(sys.argv[2])
    sys.exit(load_target(runner, job.parents[2])(job))


if __name__ == "__main__":
    main()
