"""Peak memory of a job in a separate process: `python -m benchmarks.merging.memory JOB.json ROOT`."""

import json
import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return the peak resident memory of this process.

    `ru_maxrss` would include the process that started this one, if that was larger.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def main() -> None:
    """Run the job and print the peak before it, all imports done, and after it."""
    from benchmarks.merging.contestants import run_job  # noqa: PLC0415 - merging_trial imports none of this
    from nasflow.job.spec import JobSpec  # noqa: PLC0415

    spec = JobSpec.model_validate_json(Path(sys.argv[1]).read_text())
    before = peak_bytes()
    run_job(spec, Path(sys.argv[2]))
    print(json.dumps({"before": before, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
