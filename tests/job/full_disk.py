"""A job on a disk that fills up: `python -m tests.job.full_disk FOLDER`, in its own mount namespace. Prints JSON."""

import json
import subprocess
import sys
import time
from pathlib import Path

from nasflow.job.events import Alert, Ended, Epoch, parse_event, read_lines
from nasflow.job.spec import job_dir
from tests.flows.doctored_disk import enter_namespace
from tests.training.jobs import evaluator, make_job, outcome, sample

SIZE = 4 << 20
SPACE = "spaces.py:net"


def run(root: Path) -> dict[str, object]:
    """Fill the disk after the first epoch; make room again once every epoch is trained, and not before."""
    slow = {"target": "spaces.py:augmented", "params": {"pause": 0.005}}
    config = evaluator(data=slow, epochs=5)
    spec = make_job(SPACE, config, sample(SPACE, config, 2))
    folder = job_dir(root, spec.job_id)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(spec.model_dump_json())
    filler = root / "filler"
    job = subprocess.Popen([sys.executable, "-m", "nasflow.training.runner", str(folder / "job.json")])
    while not (seen := events(folder)) or not any(isinstance(event, Epoch) for event in seen):
        time.sleep(0.01)
    with filler.open("wb", buffering=0) as file:
        room = 1 << 20
        while room >= 1024:
            try:
                file.write(bytes(room))
            except OSError:
                room //= 2
    file_size = filler.stat().st_size
    with filler.open("r+b") as file:
        file.truncate(file_size - 4096)  # a page, for events
    while sum(isinstance(event, Epoch) for event in events(folder)) < 10 and job.poll() is None:
        time.sleep(0.01)
    before = events(folder)
    filler.unlink()
    job.wait(60)
    after = events(folder)
    done = [outcome(after, root, trial) for trial in range(2)]
    return {
        "code": job.returncode,
        "alerts": [event.text for event in after if isinstance(event, Alert)],
        "finals before there was room": sum(event.kind == "final" for event in before),
        "ended well": [event.error for event in after if isinstance(event, Ended)] == [None],
        "epochs": [found.epochs for found in done],
        "finals": [found.final for found in done],
        "tensors": [{name: tensor.tolist() for name, tensor in found.tensors.items()} for found in done],
    }


def events(folder: Path) -> list[object]:
    """What the job has told so far."""
    return [parse_event(line) for line in read_lines(folder / "events.jsonl")[0]]


if __name__ == "__main__":
    enter_namespace()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", sys.argv[1]], check=True)
    json.dump(run(Path(sys.argv[1])), sys.stdout)
