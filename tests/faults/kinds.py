"""All kinds of faults: what is done, what is promised then, and what a fault of it needs of the machine."""

import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.clock import Clock
from tests.faults.processes import Strike, kill, kill_all, kill_server, second_controller, stop
from tests.faults.scene import Missed, Scene
from tests.faults.storage import LOCKED_SECONDS, damage, fill_disk, lock_database, tear_events

_JUMPS = [-86_400, -3_600, -60, 60, 3_600, 86_400]  # seconds


def jump_clock(scene: Scene, rng: random.Random) -> str:
    """The clock is set forward or back."""
    if scene.clock is None:
        raise Missed("the clock can't be set")
    seconds = rng.choice(_JUMPS)
    scene.clock.jump(seconds)
    return f"set the clock by {seconds:+d} s"


def no_small_disk() -> str | None:
    """Why no small disk can be mounted here."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            return f"no small disk can be mounted: {tried.stderr.strip()}"
        subprocess.run(["umount", place], check=True)
    return None


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        weight: how often it is dealt, compared with others.
        strike: does it, and says what it has done.
        fault, happens, lost: for the table: what it is, what nasflow does then, and what is lost at most.
        lacking: why it can't be done here, None if it can.
    """

    weight: int
    strike: Strike
    fault: str
    happens: str
    lost: str
    lacking: Callable[[], str | None] = lambda: None


_EPOCH = "the running epoch of the members of one job"
_EPOCHS = "the running epoch of all members"

KINDS: dict[str, Kind] = {
    "job-kill": Kind(
        10, kill("job"), "SIGKILL of a job",
        "no trial is blamed; the batch is started again and goes on from its checkpoints", _EPOCH,
    ),
    "job-stop": Kind(3, stop("job"), "a job stands still (SIGSTOP) and goes on", "it goes on", "nothing"),
    "worker-kill": Kind(
        8, kill("worker"), "SIGKILL of a worker",
        "its job ends with it; the next worker takes the batch up from its checkpoints", _EPOCH,
    ),
    "worker-stop": Kind(3, stop("worker"), "a worker stands still and goes on", "its job trains meanwhile", "nothing"),
    "zygote-kill": Kind(
        3, kill("zygote"), "SIGKILL of the program that forks the workers",
        "workers and jobs live on; a new program starts when a worker is missing", "nothing",
    ),
    "zygote-stop": Kind(
        2, stop("zygote"), "the program that forks the workers stands still and goes on", "nothing", "nothing"
    ),
    "controller-kill": Kind(
        8, kill("controller"), "SIGKILL of the controller (the flow)",
        "jobs live on; the same command finds them and reads what they told meanwhile", "nothing",
    ),
    "controller-stop": Kind(
        3, stop("controller"), "the controller stands still and goes on", "jobs train meanwhile", "nothing"
    ),
    "machine-kill": Kind(
        4, kill_all, "SIGKILL of everything at once: controller, workers, jobs",
        "the same command goes on from the checkpoints", _EPOCHS,
    ),
    "server-kill": Kind(
        3, kill_server, "SIGKILL of the Prefect server, started again later on its database",
        "jobs live on; the controller tries again until its server is back, or ends and the same command goes on",
        "nothing",
    ),
    "server-stop": Kind(
        2, stop("server"), "the Prefect server stands still and goes on", "jobs train, the controller waits", "nothing"
    ),
    "database-locked": Kind(
        1, lock_database, f"the study's database is locked for {LOCKED_SECONDS:.0f} s",
        "jobs train; the controller waits", "nothing",
    ),
    "disk-full": Kind(
        2, fill_disk, "the disk with jobs and checkpoints is full for a while",
        "one error says so; the checkpoints before stay, and the search goes on once there is room",
        "epochs that could not be saved", no_small_disk,
    ),
    "checkpoint-cut": Kind(
        3, damage(truncate=True), "the newest checkpoint is cut while its job is down",
        "it is found out, with a warning; the one before is used", "the epochs of that checkpoint",
    ),
    "checkpoint-flipped": Kind(
        3, damage(truncate=False), "a bit of the newest checkpoint flips while its job is down",
        "members whose state it hits go on from the checkpoint before, with a warning", "the epochs of that checkpoint",
    ),
    "events-torn": Kind(
        3, tear_events, "the last line of a job's events is torn", "the line is skipped", _EPOCH
    ),
    "clock-jump": Kind(
        2, jump_clock, "the clock is set by a minute, an hour or a day, forward or back", "nothing", "nothing",
        Clock.lacking,
    ),
    "second-controller": Kind(
        2, second_controller, "the search is started twice",
        "one is refused with exit code 2 and names the other; it has written nothing", "nothing",
    ),
}  # fmt: skip
"""By name, as `--only` takes it."""


@dataclass(frozen=True)
class Fault:
    """One fault: all chance in it follows from its kind and seed."""

    kind: str
    seed: int

    @property
    def rng(self) -> random.Random:
        """The fault's own chance, from its start."""
        return random.Random(f"{self.kind} {self.seed}")

    @property
    def instant(self) -> tuple[float, float]:
        """When it strikes: as soon as this share of the search's epochs was trained, so many seconds later."""
        rng = random.Random(f"instant of {self.kind} {self.seed}")
        if rng.random() < 0.1:
            return 0.0, rng.uniform(0.0, 8.0)  # while the search starts
        return rng.uniform(0.0, 0.98), rng.uniform(0.0, 0.4)


def deal(seed: int, kinds: dict[str, Kind]) -> "list[str]":
    """The kinds in random order, each as often as its weight says."""
    deck = [name for name, kind in kinds.items() for _ in range(kind.weight)]
    random.Random(seed).shuffle(deck)
    return deck
