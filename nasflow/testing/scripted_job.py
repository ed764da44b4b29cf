"""A job that carries out scripted steps in place of training, for the contract suite of training services.

The steps are in the spec's `space.params["steps"]`, each a list of a word and its argument:

    ["epoch", n]      report epoch n of trial 0; from its "checkpoint" (`replayed`) if an earlier run got that far
    ["sleep", n]      wait for n seconds
    ["wait", name]    wait until the file <root>/<name> exists
    ["print", text]   print to the log
    ["spawn", how]    start a process that sleeps: `child`, `session` (in its own session) or `daemon` (also
                      without parent and environment); its pid is appended to the job's file `pids`
    ["ignore", n]     ignore signal n
    ["hold", n]       hold n bytes of memory until the end
    ["return", n], ["exit", n], ["signal", n], ["raise", text]
                      end: with exit code n, hard with exit code n, by killing itself with signal n, by an exception
    ["report", name]  write process ids, environment and loaded modules to the job's file <name>

The pid of each run is appended to the job's file `runs`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nasflow.job.events import Ended, Epoch, EventWriter, Started
from nasflow.job.spec import trial_dir
from nasflow.system.small_files import write_aside

_SLEEP = "sleep 300"
_HELD: list[bytes] = []


def run_job_file(path: Path) -> int:
    """Carry out the steps of the spec in `path` and return the exit code."""
    folder, root = path.parent, path.parents[2]
    append(folder / "runs", os.getpid())
    events = EventWriter(folder / "events.jsonl")
    events.write(Started(resumed={}))
    for word, argument in json.loads(path.read_text())["space"]["params"]["steps"]:
        match word:
            case "epoch":
                events.write(epoch(root, argument))
            case "return":
                return int(argument)
            case "raise":
                raise RuntimeError(argument)
            case _:
                step(folder, root, word, argument)
    events.write(Ended())
    events.close()
    return 0


def epoch(root: Path, number: int) -> Epoch:
    """Pretend to train an epoch and return its event."""
    checkpoint = trial_dir(root, 0) / f"epoch-{number}"
    replayed = checkpoint.exists()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(f"{number}\n")
    return Epoch(trial=0, epoch=number, metrics={"loss": 1.0 / number}, replayed=replayed)


def step(folder: Path, root: Path, word: str, argument: Any) -> None:
    """Carry out a step that reports no event."""
    match word:
        case "sleep":
            time.sleep(argument)
        case "wait":
            while not (root / argument).exists():
                time.sleep(0.01)
        case "print":
            sys.stdout.write(argument + "\n")
        case "spawn":
            append(folder / "pids", spawn(argument))
        case "ignore":
            signal.signal(argument, signal.SIG_IGN)
        case "hold":
            _HELD.append(b"\1" * argument)
        case "exit":
            os._exit(argument)
        case "signal":
            os.kill(os.getpid(), argument)
        case "report":
            about = {
                "pid": os.getpid(),
                "parent": os.getppid(),
                "session": os.getsid(0),
                "modules": sorted(sys.modules),
            }
            write_aside(folder / argument, json.dumps({**about, "environment": dict(os.environ)}))
        case _:
            raise ValueError(f"unknown step '{word}'")


def spawn(how: str) -> int:
    """Start a sleeping process and return its pid."""
    if how == "daemon":
        script = f"setsid env -i {_SLEEP} >/dev/null 2>&1 & echo $!"
        return int(subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True).stdout)
    return subprocess.Popen(_SLEEP.split(), start_new_session=how == "session").pid


def append(path: Path, value: int) -> None:
    """Append a line to a file."""
    with path.open("a") as file:
        file.write(f"{value}\n")
