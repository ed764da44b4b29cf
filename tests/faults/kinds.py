"""All kinds of faults: what is done, what is promised then, and what a fault of it needs of the machine."""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults import shim
from tests.faults.damage import cut_power, damage_any
from tests.faults.processes import (
    Strike,
    hang_job,
    kill,
    kill_all,
    kill_server,
    preempt_job,
    second_controller,
    stop,
    upgrade,
)
from tests.faults.resources import exhaust_files, grow_log, no_memory_limit, other_store, starve_controller
from tests.faults.scene import Missed, Scene
from tests.faults.servers import AWAY_SECONDS, cut_postgresql, prefect, restart_postgresql
from tests.faults.small_disks import no_small_disk
from tests.faults.storage import (
    JOBS,
    LOCKED_SECONDS,
    STORE,
    damage,
    fill_disk,
    lock_database,
    refuse_writes,
    tear_events,
)
from tests.postgresql import PostgresqlServer

_JUMPS = [-86_400, -3_600, -60, 60, 3_600, 86_400]  # seconds


def jump_clock(scene: Scene, rng: random.Random) -> str:
    """The clock is set forward or back."""
    if scene.clock is None:
        raise Missed("the clock can't be set")
    seconds = rng.choice(_JUMPS)
    scene.clock.jump(seconds)
    return f"set the clock by {seconds:+d} s"


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        weight: how often it is dealt, compared with others.
        strike: does it, and says what it has done.
        fault, happens, lost: for the table: what it is, what nasflow does then, and what is lost at most.
        lacking: why it can't be done here, None if it can.
        needs: what a search must have for it: `disks` of its own, a store on `postgresql`, or notes of what is synced,
            for a cut of its `power`, or a copy of nasflow's `package`.
    """

    weight: int
    strike: Strike
    fault: str
    happens: str
    lost: str
    lacking: Callable[[], str | None] = lambda: None
    needs: str = ""


AGAIN = "no trial is blamed; the batch is started again and goes on from its checkpoints"
EPOCH = "the running epoch of the members of one job"
_EPOCHS = "the running epoch of all members"

KINDS: dict[str, Kind] = {
    "job-kill": Kind(
        10, kill("job"), "SIGKILL of a job",
        AGAIN, EPOCH,
    ),
    "job-preempted": Kind(
        3, preempt_job, "a job is asked to end (SIGTERM), as on a node that is taken back",
        "it saves the running epoch (`checkpoint.on_preempt`) and ends; no trial is blamed, and the batch is started "
        "again", "nothing",
    ),
    "job-hang": Kind(
        3, hang_job, "a job is stopped (SIGSTOP) for good",
        "it is ended when `limits.stalled` has passed; no trial is blamed, and the batch is started again", EPOCH,
    ),
    "job-stop": Kind(3, stop("job"), "a job stands still (SIGSTOP) and goes on", "it goes on", "nothing"),
    "worker-kill": Kind(
        8, kill("worker"), "SIGKILL of a worker",
        "its job ends with it; the next worker takes the batch up from its checkpoints", EPOCH,
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
    "prefect-away": Kind(
        1, prefect("away"), f"the Prefect server can't be reached for {AWAY_SECONDS / 60:.0f} minutes",
        "jobs train; the controller tries again until its server is back, or ends and the same command goes on",
        "nothing",
    ),
    "prefect-slow": Kind(
        2, prefect("slow"), "the Prefect server takes 3 s an answer for a while", "jobs train, the controller waits",
        "nothing",
    ),
    "prefect-broken": Kind(
        2, prefect("broken"), "the Prefect server answers with 500, 502, 503 or 504 for a while",
        "jobs train; the controller tries again, or ends and the same command goes on", "nothing",
    ),
    "postgresql-restarted": Kind(
        3, restart_postgresql, "the PostgreSQL server with the store ends or crashes, and is started again",
        "jobs train; the controller follows them again, or ends with one error and the same command goes on", "nothing",
        PostgresqlServer.lacking, "postgresql",
    ),
    "postgresql-cut": Kind(
        3, cut_postgresql, "connections to PostgreSQL are cut in mid-transaction",
        "the transaction is rolled back; the controller tries again, or ends and the same command goes on", "nothing",
        PostgresqlServer.lacking, "postgresql",
    ),
    "database-locked": Kind(
        1, lock_database, f"the study's database is locked for {LOCKED_SECONDS:.0f} s",
        "jobs train; the controller waits", "nothing",
    ),
    "disk-full": Kind(
        2, fill_disk(JOBS), "the disk with jobs and checkpoints is full for a while",
        "one error says so; the checkpoints before stay, and the search goes on once there is room",
        "epochs that could not be saved", no_small_disk, "disks",
    ),
    "store-full": Kind(
        3, fill_disk(STORE), "the disk with the study's database is full for a while",
        "jobs train; the controller follows them again, or ends with one error and the same command goes on", "nothing",
        no_small_disk, "disks",
    ),
    "tmp-full": Kind(
        1, fill_disk("tmp"), "the disk with the temporary folder is full for a while",
        "nothing, or the controller ends with one error, and the same command goes on", "nothing",
        no_small_disk, "disks",
    ),
    "cache-full": Kind(
        1, fill_disk("cache"), "the disk with the cache is full for a while", "what would be kept there is made again",
        "nothing", no_small_disk, "disks",
    ),
    "read-only": Kind(
        2, refuse_writes(errno.EROFS), "the disk with jobs, checkpoints and database is read-only (EROFS) for a while",
        "no trial is blamed; what ended goes on from its checkpoints once the disk can be written", _EPOCHS,
        shim.lacking,
    ),
    "io-error": Kind(
        2, refuse_writes(errno.EIO), "writing fails (EIO) for a while, to jobs and checkpoints or to the database",
        "no trial is blamed; what ended goes on from its checkpoints once the disk can be written", _EPOCHS,
        shim.lacking,
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
        3, tear_events, "the last line of a job's events is torn", "the line is skipped", EPOCH
    ),
    "clock-jump": Kind(
        2, jump_clock, "the clock is set by a minute, an hour or a day, forward or back", "nothing", "nothing",
        shim.lacking,
    ),
    "damage-any": Kind(
        4, damage_any,
        "everything is killed, and one file of the study's folder is emptied, cut or overwritten by random bytes",
        "a damaged file is set aside, or its checkpoint left out, with a warning; the same command goes on",
        "the running epoch of all members, and the epochs of a damaged checkpoint",
    ),
    "power-cut": Kind(
        3, cut_power, "everything is killed, and all files lose what was not synced",
        "the same command goes on from the checkpoints; damaged small files are set aside", _EPOCHS,
        shim.lacking, "power",
    ),
    "controller-files": Kind(
        2, exhaust_files("controller"), "the controller can open no more files for a while",
        "jobs train; it goes on, or ends with one error and the same command goes on", "nothing",
    ),
    "worker-files": Kind(
        2, exhaust_files("worker"), "a worker can open no more files for a while",
        "it goes on, or ends; the next worker takes its batch up from its checkpoints", EPOCH,
    ),
    "controller-memory": Kind(
        1, starve_controller, "the kernel kills the controller for want of memory", "as for SIGKILL", "nothing",
        no_memory_limit,
    ),
    "upgrade": Kind(
        3, upgrade, "nasflow is upgraded in place, while the search trains or after SIGKILL of the controller",
        "workers and jobs of the old version train on, and the same command finds them; it fails only if it is started "
        "in the moment without files", "nothing",
        needs="package",
    ),
    "huge-log": Kind(1, grow_log, "a job's log grows by 1 GB", "nothing", "nothing"),
    "other-store": Kind(
        1, other_store, "the search is started with the same `work_dir` and another store",
        "it is refused with exit code 2, which names the folder; it has written nothing", "nothing",
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
