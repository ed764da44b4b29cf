"""A job that reports far more than it should."""

from pathlib import Path

from nasflow.job.events import Ended, Entered, Final, Started
from nasflow.job.spec import JobSpec

LONG = 2**24  # characters of a line
MANY = 2**17  # lines


def write_much(path: Path) -> int:
    """In place of the runner: report one trial, between a line that is too long and many lines that mean nothing."""
    spec = JobSpec.model_validate_json(path.read_text())
    trial = spec.members[0].trial
    with (path.parent / "events.jsonl").open("w") as file:
        file.write(f"{Started(resumed={trial: 0}).model_dump_json()}\n")
        file.write("[" * LONG + "\n")
        file.write(f"{Entered(trial=trial).model_dump_json()}{' ' * 50}\n" * MANY)
        for event in (Final(trial=trial, epochs=1, metrics={"val_accuracy": 0.5}), Ended()):
            file.write(f"{event.model_dump_json()}\n")
    return 0
