"""Faults of processes: killed, stopped for a while, or one too many."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from nasflow.training_service.machine.processes import carriers
from tests.faults.scene import Missed, Scene
from tests.faults.search import MARK, STALLED, alive, children

Strike = Callable[[Scene, random.Random], str]

_HANGS_AT_MOST = 8 * STALLED  # 6 times as long before the first epoch, and some more

_PREEMPTED_WITHIN = 20.0  # seconds

_REFUSED = "another controller runs study"
_TRACEBACK = "Traceback (most recent call last)"
_NO_FILES = "Too many open files"  # of another fault, under which a later controller may have started


def end(*processes: psutil.Process) -> None:
    """SIGKILL processes, and wait until they are dead. Their exit codes are left to their parents."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)


def kill(kind: str) -> Strike:
    """SIGKILL of one process of a kind."""

    def strike(scene: Scene, rng: random.Random) -> str:
        victim = scene.victim(kind, rng)
        end(victim)
        return f"killed {kind} {victim.pid}"

    return strike


def preempt_job(scene: Scene, rng: random.Random) -> str:
    """SIGTERM of a job, as on a node that is taken back."""
    victim = scene.victim("job", rng)
    with suppress(psutil.NoSuchProcess):
        victim.terminate()
    begin = time.monotonic()
    while alive([victim.pid]) and time.monotonic() - begin < _PREEMPTED_WITHIN:
        scene.search.tend_for(0.05)
    if alive([victim.pid]):
        scene.promises.append(lambda: f"job {victim.pid} did not end within {_PREEMPTED_WITHIN:.0f} s of SIGTERM")
    return f"asked job {victim.pid} to end"


def stop(kind: str) -> Strike:
    """SIGSTOP of one process of a kind, and SIGCONT after a while."""

    def strike(scene: Scene, rng: random.Random) -> str:
        victim = scene.victim(kind, rng)
        seconds = scene.pause(rng, 0.5, 4.0)
        with stopped(victim):
            scene.search.tend_for(seconds)
        return f"stopped {kind} {victim.pid} for {seconds:.1f} s"

    return strike


def hang_job(scene: Scene, rng: random.Random) -> str:
    """SIGSTOP of a job, and no SIGCONT: it has to be ended by what watches it."""
    victim = scene.victim("job", rng)
    begin = time.monotonic()
    victim.suspend()
    while alive([victim.pid]) and not scene.search.ended:
        scene.search.tend_for(0.1)
        if time.monotonic() - begin > _HANGS_AT_MOST:
            scene.promises.append(lambda: f"job {victim.pid} was stopped for {_HANGS_AT_MOST:.0f} s and not ended")
            victim.resume()
            break
    return f"stopped job {victim.pid}, which was ended after {time.monotonic() - begin:.1f} s"


@contextmanager
def stopped(process: psutil.Process) -> Iterator[psutil.Process]:
    """Within it, a process stands still."""
    with suppress(psutil.NoSuchProcess):
        process.suspend()
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def kill_all(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of all processes of the search, in any order: as when the machine goes down."""
    victims = scene.await_some(lambda: carriers(MARK, str(scene.search.folder)), "process")
    rng.shuffle(victims)
    end(*victims)
    return f"killed all {len(victims)} processes"


def kill_server(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of the Prefect server, which is started again on its database and port after a while."""
    down = scene.pause(rng, 0.0, 5.0)
    helpers = children(psutil.Process(scene.search.prefect.pid))
    scene.search.prefect.end(signal.SIGKILL)
    end(*helpers)
    scene.search.tend_for(down)
    scene.search.prefect.start()
    return f"killed the Prefect server and started it again after {down:.1f} s"


def second_controller(scene: Scene, rng: random.Random) -> str:
    """The search is started once more while it runs, or by two at once after its controller was killed.

    Of two, one has to be refused and the other to go on.
    """
    search = scene.search
    [first] = scene.await_some(lambda: search.living("controller"), "controller")
    at_once = rng.random() < 0.5
    if at_once:
        end(first)
        search.tend()
    before = len(search.restarts)
    second = search.launch()
    held: set[psutil.Process] = set()
    with ExitStack() as stack:
        while second.process.poll() is None and not search.ended:
            for job in set(search.living("job")) - held:  # so that the search can't end first
                held.add(stack.enter_context(stopped(job)))
            search.tend_for(0.1)
            if any(_REFUSED in restart.said for restart in search.restarts[before:]):
                search.adopt(second)
                return "two controllers started at once: the first was refused"
    code = second.process.wait(60)
    if search.ended and code == 0:
        raise Missed("the search ended before a second controller could be refused")
    if code != 2 or _REFUSED not in second.said():
        said = f"a second controller ended with {code}: {second.said()}"
        scene.promises.append(lambda: said)
    return "two controllers started at once: the second was refused" if at_once else "a second controller was refused"


def _errors(said: str) -> list[str]:
    """The last line of each traceback, which names the error."""
    parts = (part.splitlines()[1:] for part in said.split(_TRACEBACK)[1:])
    return [next((line for line in lines if line and not line.startswith(" ")), "") for lines in parts]


def upgrade(scene: Scene, rng: random.Random) -> str:
    """nasflow is replaced by another version while the search trains, or after its controller was killed."""
    package, search = scene.package, scene.search
    if package is None:
        raise Missed("the search runs on the installed package")
    killed = rng.random() < 0.5
    if killed:
        end(scene.victim("controller", rng))
    else:
        scene.victim("job", rng)
    seconds = scene.pause(rng, 0.0, 3.0)
    package.upgrade(seconds)

    def traceback() -> str | None:
        for log in sorted(search.folder.glob("controller-*.log")):
            said = log.read_text()
            found_nothing = said.startswith(_TRACEBACK) and "No module named 'nasflow" in said  # when it was started
            if any(_NO_FILES not in error for error in _errors(said)) and not found_nothing:
                return f"a traceback in {log.name} after an upgrade: {said[-2000:]}"
        return None

    scene.promises.append(traceback)
    how = "after the controller was killed" if killed else "under a running controller"
    return f"upgraded nasflow to {package.version} {how}; it was missing for {seconds:.2f} s and the time of copying"
