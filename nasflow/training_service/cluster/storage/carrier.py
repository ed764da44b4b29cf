"""The program of a run on a node that shares no folder with the controller.

`python -m nasflow.training_service.cluster.storage.carrier JOB TOKEN PLACE --storage JSON`: it brings what the run
needs into a folder on the node's own disk, starts `node_program` there, and sends what that writes while it trains. So
training never waits for the storage, and goes on when it is away.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, TypeVar

from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.errors import NasflowError
from nasflow.job.disk_full import is_full
from nasflow.job.spec import JobSpec, job_dir, stop_mark
from nasflow.system.small_files import write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run, run_dir
from nasflow.training_service.cluster.storage import parcel
from nasflow.training_service.cluster.storage.base import StorageSilentError
from nasflow.training_service.cluster.storage.bucket import Bucket, texts_on_node
from nasflow.training_service.cluster.storage.parcel import Control, Input, Part
from nasflow.training_service.cluster.storage.scratch import own_folder
from nasflow.training_service.cluster.storage.sender import Sender
from nasflow.training_service.files.incoming import place_links
from nasflow.training_service.machine.processes import die_with_parent
from nasflow.training_service.ship.code_archive import ArchiveError, unpack

T = TypeVar("T")

_LOOK = 0.1  # seconds between two looks at the run's files
_LAST_WORDS = 20.0  # seconds for the last part, if the node is taken back
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 20.0  # seconds between two attempts


class _GivenUpError(Exception):
    """The controller no longer wants the run, or another process has begun it."""


class Carrier:
    """Carries one run.

    Args:
        config: the storage.
        bucket: the study's folder in it.
        name: the run's folder in that.
        run: the run, in a root on this node.
        shown: another root on the same disk, in which the job's log and the run's end are shown.
    """

    def __init__(self, config: ObjectStoreConfig, bucket: Bucket, name: str, run: Run, shown: Path | None = None):
        self._config, self._bucket, self._name, self._run = config, bucket, name, run
        self._shown = shown
        self._place = f"{name}/{secrets.token_hex(8)}"
        self._controller = run.root / "controller"
        self._current = run_dir(run.root, run.job_id) / "current"
        self._control = Control()
        self._looked, self._told = time.monotonic(), 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._unwanted = False

    def by_signal(self, number: int, _: object) -> None:
        """Signal handler: the job ends first, and is sent."""
        self._told = self._told or time.monotonic()
        if self._child is not None:
            self._child.send_signal(number)

    def carry(self, options: list[str]) -> None:
        """Bring what the run needs, run it, and send what it writes."""
        try:
            self._begin()
            try:
                spec = self._bring()
            except (ArchiveError, NasflowError, OSError, ValueError) as error:
                self._say_why_not(error)
                return
            sender = Sender(self._bucket, self._place, self._run, spec, self._config.look_seconds)
            sender.note_here()
            state = self._run_and_send(sender, options)
            deadline = time.monotonic() + self._config.retry_for
            while not (sender.final_sent or self._is_over(deadline)):
                sender.send_last(state)
                time.sleep(_LOOK)
            self._show(self._current, self._run.file("exit.json"))
        except _GivenUpError:
            self._unwanted = True
        if self._unwanted:
            self._until_answered(self._remove_own)

    def _begin(self) -> None:
        """Mark the run as begun. Of several processes of a run at most one goes on: the last to write sees the others.

        Raises:
            _GivenUpError: another has begun, or none should.
        """
        self._until_answered(self._look)
        if self._control.ends:
            raise _GivenUpError
        mark = self._run.root / "mark"
        mark.touch()
        self._until_answered(lambda: self._bucket.put(mark, f"{self._place}/began"))
        there = self._until_answered(lambda: self._bucket.list(self._name))
        begun = {path.rpartition("/")[0] for path in there if path.endswith("/began")}
        if begun != {self._place}:
            raise _GivenUpError

    def _bring(self) -> JobSpec:
        """Bring the job, its checkpoints and the user's code here."""
        aside = self._run.root / "aside"
        with self._fetch(f"{self._name}/input") as file:
            header = parcel.read_header(file, Input)
            if header.version != version("nasflow"):
                raise NasflowError(f"the node has nasflow {version('nasflow')}, and needs {header.version}")
            for each in header.files:
                parcel.unpack_file(file, each, aside)
                place_links(aside, [self._run.root / path for path in each.paths])
        with self._fetch_code(header.code) as file:
            place = unpack(file, self._run.root / "code", header.code)
        job = job_dir(self._run.root, self._run.job_id) / "job.json"
        spec = JobSpec.model_validate_json(job.read_bytes()).model_copy(update={"base_dir": place})
        write_aside(job, spec.model_dump_json())
        return spec

    def refuse(self, error: Exception) -> None:
        """Send that the job can't run here, for a reason that was found before anything was brought."""
        try:
            self._begin()
            self._say_why_not(error)
        except _GivenUpError:
            self._until_answered(self._remove_own)

    def _say_why_not(self, error: Exception) -> None:
        """Send that the job can't run here."""
        text = f"it could not begin on its node: {error}"[:300]
        state = JobState(status=JobStatus.LOST, reason=text, began=False)
        for brought in ("fetched", "aside"):  # the disk may be full of them
            (self._run.root / brought).unlink(missing_ok=True)
        aside = self._run.root / "part"
        parcel.write(aside, Part(events_at=0, events=0, log_at=0, log=0, exit=state), [b"", b""])
        sys.stderr.write(f"{state.reason}\n")
        self._until_answered(lambda: self._bucket.put(aside, f"{self._place}/{0:08d}"))

    def _show(self, *paths: Path) -> None:
        """Let files of the run also be at their places in the root `shown`."""
        if self._shown is None:
            return
        for path in paths:
            place = self._shown / path.relative_to(self._run.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                os.link(path, place)

    def _fetch(self, path: str) -> BinaryIO:
        target = self._run.root / "fetched"
        self._until_answered(lambda: self._bucket.get(path, target))
        return target.open("rb")

    def _fetch_code(self, digest: str) -> BinaryIO:
        name = f"{digest}.tar.gz"
        try:
            return self._fetch(f"code/{name}")
        except _GivenUpError:
            self._until_answered(self._look)  # raises it again if the run's own folder is gone, too
        raise NasflowError(
            f"{name} is no longer in the storage; let no other program, and no rule for old objects, remove what "
            "nasflow has there"
        )

    def _run_and_send(self, sender: Sender, options: list[str]) -> JobState:
        run = self._run
        self._current.parent.mkdir(exist_ok=True)
        write_aside(self._current, run.token)
        self._controller.touch()
        module = "nasflow.training_service.cluster.node_program"
        program = [sys.executable, "-P", "-m", module, *run.arguments, str(self._controller), *options]
        log = job_dir(run.root, run.job_id) / "job.log"
        with log.open("ab") as output:
            self._show(log)
            self._child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while self._child.poll() is None:
            sender.send_new()
            if time.monotonic() - self._looked >= self._config.look_seconds:
                self._look_soon()
                if self._control.ends or self._unwanted:
                    self._ask_to_end()
            if self._told:
                self._child.send_signal(signal.SIGTERM)  # again, because it may just have started
            time.sleep(_LOOK)
        ended = run.ended()
        return ended or JobState(status=JobStatus.LOST, reason="its program on the node did not say how it ended")

    def _ask_to_end(self) -> None:
        """Tell the job's program to end; if the disk is full, at the next look."""
        try:
            write_aside(self._current, f"{self._run.token} ends")
        except OSError as error:
            if not is_full(error):
                raise

    def _look_soon(self) -> None:
        try:
            self._look()
        except StorageSilentError:
            self._looked = time.monotonic()
        except _GivenUpError:
            self._unwanted = True
        except OSError as error:  # a mark for which there is no room is made at the next look
            if not is_full(error):
                raise

    def _look(self) -> None:
        """Read what the run is to know.

        Raises:
            _GivenUpError: the run's folder is gone.
            StorageSilentError: no answer.
        """
        target = self._run.root / "control"
        try:
            self._bucket.get(f"{self._name}/control", target, size=0)  # it is small
        except FileNotFoundError:
            raise _GivenUpError from None
        self._looked = time.monotonic()
        try:
            control = Control.model_validate_json(target.read_bytes())
        except ValueError:  # it is just being written
            return
        for trial in control.stop:
            mark = stop_mark(self._run.root, trial)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        if control.beat != self._control.beat:
            self._controller.touch()
        self._control = control

    def _remove_own(self) -> None:
        own = self._bucket.list(self._place)
        self._bucket.remove(own)

    def _is_over(self, deadline: float) -> bool:
        """Whether the time is over in which the storage may answer."""
        now = time.monotonic()
        return self._unwanted or now > deadline or bool(self._told and now - self._told > _LAST_WORDS)

    def _until_answered(self, request: Callable[[], T]) -> T:
        """Repeat a request while the storage does not answer."""
        deadline, pause = time.monotonic() + self._config.retry_for, _FIRST_PAUSE
        while True:
            try:
                return request()
            except FileNotFoundError:
                raise _GivenUpError from None
            except StorageSilentError:
                if time.monotonic() > deadline or self._told:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("token", help="the run's token")
    parser.add_argument("place", help="the run's folder in the storage")
    parser.add_argument("--storage", type=ObjectStoreConfig.model_validate_json, required=True)
    parser.add_argument("--shown", type=Path, help="a folder on the same disk that gets the log and the end")
    parsed, options = parser.parse_known_args()
    study, _, name = parsed.place.partition("/")

    def carrier_in(root: Path) -> Carrier:
        made = Carrier(parsed.storage, bucket, name, Run(root, parsed.job_id, parsed.token), parsed.shown)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, made.by_signal)
        die_with_parent(os.getppid(), signal.SIGTERM)
        return made

    try:
        bucket = Bucket(parsed.storage, texts_on_node(parsed.storage), study)
        with ExitStack() as stack:
            try:
                root = stack.enter_context(own_folder(parsed.storage.scratch))
            except NasflowError as error:
                with tempfile.TemporaryDirectory(prefix="nasflow-") as other:
                    carrier_in(Path(other)).refuse(error)
                raise
            carrier_in(root).carry(options)
    except NasflowError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
