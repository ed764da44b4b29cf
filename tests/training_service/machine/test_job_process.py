"""How a job ended is known, even if something of it can't be ended."""

import subprocess
import sys

from nasflow.testing.training_service import script

HANGS = """
import sys
from pathlib import Path
from nasflow.training_service.machine import job_process

def end_all(*_):
    raise TimeoutError("SIGKILL has not ended process 7")

job_process.end_all = end_all
print(job_process.run_in_child(Path(sys.argv[1]), lambda job: 3, lambda: "", 1).exit_code)
"""


def test_what_hangs_in_the_kernel_does_not_hide_how_the_job_ended(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(script("job").model_dump_json())
    done = subprocess.run([sys.executable, "-c", HANGS, str(job)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert "SIGKILL has not ended process 7" in done.stderr
