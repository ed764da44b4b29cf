"""Faults of what a machine has to share: open files, memory, room for logs, and the folder of a study."""

import os
import random
import resource
import signal
import time
from contextlib import suppress

import psutil
import pytest
import yaml

from nasflow.job.spec import job_dir
from nasflow.study.folder import MARK as MARK_OF_FOLDER
from nasflow.training_service.machine.processes import carriers
from tests.faults.processes import Strike, end
from tests.faults.scene import Missed, Scene
from tests.faults.search import MARK, NAME, alive
from tests.memory_limit import memory_limit

_LOG_BYTES = 2**30
_MEMORY_BYTES = (2**25, 2**27)
_OTHER = "other"
_AT_WORK = 8  # open files that a controller has at least, once its imports are done


def no_memory_limit() -> str | None:
    """Why no process can be given little memory here."""
    try:
        with memory_limit(2**30):
            return None
    except pytest.skip.Exception as reason:
        return str(reason.msg)


def exhaust_files(kind: str) -> Strike:
    """A process of a kind can open no more files for a while; a controller not while it imports its modules."""
    least = _AT_WORK if kind == "controller" else 0

    def at_work(victim: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return victim.num_fds() >= least
        return False

    def strike(scene: Scene, rng: random.Random) -> str:
        victim = rng.choice(scene.await_some(lambda: list(filter(at_work, scene.search.living(kind))), kind))
        seconds = scene.pause(rng, 1.0, 6.0)
        soft, hard = victim.rlimit(resource.RLIMIT_NOFILE)
        used = victim.num_fds()
        victim.rlimit(resource.RLIMIT_NOFILE, (used, hard))
        try:
            scene.search.tend_for(seconds)
        finally:
            for process in carriers(MARK, str(scene.search.folder)):  # what it has started meanwhile as well
                with suppress(psutil.NoSuchProcess):
                    process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return f"{kind} {victim.pid} could open no file beyond its {used} for {seconds:.1f} s"

    return strike


def grow_log(scene: Scene, rng: random.Random) -> str:
    """A job's log becomes a gigabyte larger."""
    job_id, _ = rng.choice(scene.await_some(scene.search.jobs, "job"))
    log = job_dir(scene.search.root, job_id) / "job.log"
    scene.await_some(lambda: [log] if log.exists() else [], "log")
    os.truncate(log, log.stat().st_size + _LOG_BYTES)
    return f"the log of job {job_id} grew by {_LOG_BYTES >> 20} MB"


def starve_controller(scene: Scene, rng: random.Random) -> str:
    """The controller is started again with too little memory; the kernel kills it."""
    search = scene.search
    size = rng.randrange(*_MEMORY_BYTES)
    end(scene.victim("controller", rng))
    with memory_limit(size) as limit:
        search.tend()
        starved = scene.victim("controller", rng)
        limit.take(starved.pid)
        deadline, before = time.monotonic() + 60, len(search.restarts)
        while alive([starved.pid]):
            if time.monotonic() > deadline:
                end(starved)
                raise Missed("the controller was not killed for want of memory")
            time.sleep(0.05)
        search.tend()
    code = search.restarts[before].code
    if code != -signal.SIGKILL:
        raise Missed(f"the controller ended with {code} before it was killed for want of memory")
    return f"the kernel killed controller {starved.pid}, which had {size >> 20} MB"


def other_store(scene: Scene, rng: random.Random) -> str:
    """A second controller with the same folder of jobs, but a store of its own, has to be refused."""
    search = scene.search
    mark = search.root / MARK_OF_FOLDER
    scene.await_some(lambda: [mark] if mark.exists() else [], "study's folder")
    config = yaml.safe_load((search.folder / f"{NAME}.yaml").read_text())
    config["store"] = f"sqlite:///{search.folder / 'tmp' / 'other.db'}"
    (search.folder / f"{_OTHER}.yaml").write_text(yaml.safe_dump(config))
    second = search.launch(_OTHER)
    while alive([second.process.pid]):
        search.tend_for(0.1)
        if search.ended:
            second.process.wait(120)
    code = second.process.wait(60)
    for file in (search.folder / "tmp").glob("other.db*"):
        file.unlink()
    if code != 2 or "that is not the one in this store" not in second.said():
        said = f"a controller with another store ended with {code}: {second.said()}"
        scene.promises.append(lambda: said)
    return "a controller with another store was refused"
