"""An NNI experiment that tries given architectures, two at a time, on the local or the remote training service.

`python -m benchmarks.nni_side.experiment ARCHITECTURES.json RESULT.json --folder DIR`, in NNI's environment.
"""

import argparse
import json
import shlex
import socket
import sys
import time
from pathlib import Path

from nni.experiment import Experiment
from nni.experiment.config import RemoteMachineConfig

POLL = 0.2  # seconds; NNI itself checks every 10 s
CONCURRENCY = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="NNI's working directory")
    parser.add_argument("--trial", default="benchmarks.nni_side.trial", help="the module that is a trial's program")
    parser.add_argument("--remote", type=json.loads, help='{"port": of an sshd here, "user":, "key": its file}')
    options = parser.parse_args()
    architectures = json.loads(options.architectures.read_text())

    experiment = Experiment("remote" if options.remote else "local")
    config = experiment.config
    config.experiment_name = "digits"
    config.experiment_working_directory = options.folder
    config.trial_code_directory = Path(__file__).parent
    config.trial_command = f"{shlex.quote(sys.executable)} -m {options.trial}"
    config.trial_concurrency = CONCURRENCY
    config.max_trial_number = len(architectures)
    config.search_space = {"combine_params": {"_type": "choice", "_value": architectures}}
    config.tuner.name = "BatchTuner"  # NNI's way to try given configurations
    if options.remote:
        config.nni_manager_ip = "127.0.0.1"
        machine = RemoteMachineConfig(
            host="127.0.0.1",
            port=options.remote["port"],
            user=options.remote["user"],
            ssh_key_file=options.remote["key"],
            python_path=str(Path(sys.executable).parent),
        )
        config.training_service.machine_list = [machine]
    experiment.start(port=free_port())
    try:
        while experiment.get_status() not in ("DONE", "STOPPED", "ERROR"):
            time.sleep(POLL)
        jobs = experiment.list_trial_jobs()
        results = [trial.value for trial in experiment.export_data()]
    finally:
        experiment.stop()
    summary = {
        "statuses": [job.status for job in jobs],
        "began": min(job.startTime for job in jobs) / 1000,
        "ended": max(job.endTime for job in jobs) / 1000,
        "accuracy_by_lr": [(result["lr"], result["default"]) for result in results],
    }
    options.result.write_text(json.dumps(summary))


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
