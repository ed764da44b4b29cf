"""The program that acts for the controller on a host: `python -m nasflow.training_service.ssh.agent ROOT`.

It is started over SSH, reads requests from standard input, answers on standard output, and ends with its connection.
Jobs don't depend on it: a LocalService on ROOT runs them, and its workers outlive the agent.
"""

import io
import json
import logging
import os
import platform
import select
import shutil
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from nasflow.clean_text import clean_text
from nasflow.config.job_secrets import JobSecrets
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import NasflowError, ServiceError
from nasflow.job.node_jobs import is_node_job
from nasflow.job.spec import INVITATION, JobSpec, job_dir, trial_dir
from nasflow.system.small_files import read_whole, write_aside, write_private
from nasflow.training_service.base import JobHandle
from nasflow.training_service.files.incoming import KEPT, manifest_digest
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine.gpus import read_gpus
from nasflow.training_service.ssh.messages import (
    LONGEST_INVITATION,
    Answer,
    JobNews,
    Known,
    Listing,
    News,
    Opening,
    Poll,
    RemoteFile,
    Request,
    Submission,
    Upload,
)

SILENCE = 120.0  # seconds without a request after which the connection is considered dead
CHUNK = 1 << 20  # bytes of the events of all jobs, and of their logs, in one answer
LONGEST_EVENT = 1 << 22  # bytes
GREETING = "nasflow host agent"
"""The first line; output before it comes from the user's set-up commands."""
_CLAIM = "claim"
_HELD = "held"
_MACHINE = "machine"  # the file that names the machine on which the workers are
_LISTS_AGAIN = 5


class HostAgent:
    """Handles the controller's calls. All paths are below `root`."""

    def __init__(self, root: Path):
        self._root = root.resolve()
        self._service: LocalService | None = None
        self._ending: dict[str, threading.Thread] = {}

    def open(self, opening: Opening) -> list[str]:
        """Start or find the workers and return the names of their slots.

        Raises:
            ServiceError: the host can't run jobs as configured, or jobs may run on another machine with the same home.
        """
        gpus = [] if opening.slots is not None else opening.gpu_indices
        if gpus is None:
            gpus = [gpu.index for gpu in read_gpus()]
        if gpus and len(gpus) < opening.devices_per_job:
            raise ServiceError(f"the host has only {len(gpus)} GPUs, and a job takes {opening.devices_per_job} devices")
        config = LocalServiceConfig(
            slots=opening.slots,
            gpus=gpus,
            slots_per_gpu=opening.max_trials_per_gpu,
            devices_per_job=opening.devices_per_job,
            use_active_gpu=opening.use_active_gpu,
            reuse=opening.reuse,
            idle_timeout=opening.idle_timeout,
            abandoned_after=opening.abandoned_after,
            pass_env=opening.pass_env,
        )
        self._root.mkdir(parents=True, exist_ok=True)
        self._refuse_another_machine()
        for left in self._root.glob("incoming-*"):  # by a connection that ended while files were sent
            left.unlink()
        secrets = JobSecrets(texts=lambda: opening.secrets, names=tuple(opening.secrets))
        service = LocalService(config, self._root, opening.runner, opening.preload, secrets=secrets)
        service.validate()
        service.prepare()
        self._service = service
        return list(service.slots())

    def poll(self, poll: Poll) -> News:
        """Return news of the jobs in `poll`, and end all other jobs here."""
        unwanted = [handle.job_id for handle in self._local.list() if handle.job_id not in poll.jobs]
        for job_id in {*unwanted, *poll.cancel}:
            self._end(job_id)
        for trial in poll.stop:
            self._local.stop_trial(trial)
        for job_id, text in poll.invitations.items():
            self._bring(job_id, text)
        share = CHUNK // max(1, len(poll.jobs))
        jobs = {job_id: self._news(job_id, known, share) for job_id, known in poll.jobs.items()}
        self._release({file.held for news in jobs.values() if news is not None for file in news.checkpoints})
        return News(jobs=jobs, free=0 if self._is_ending_some() else len(self._local.free_slots()))

    def submit(self, submission: Submission) -> None:
        """Queue a job, after putting its checkpoints in place. Its events and log begin anew here."""
        spec, known = JobSpec.model_validate_json(submission.spec), submission.known
        folder = job_dir(self._root, spec.job_id)
        begin = self._begin(spec.job_id)
        if begin is not None and begin.claim == known.claim:
            return
        self._local.cancel(_handle(spec.job_id))
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("events.jsonl", "job.log", "exit.json", INVITATION):
            (folder / name).unlink(missing_ok=True)
        for upload in submission.uploads:
            self._place(upload)
        self._local.submit(spec)
        write_aside(folder / _CLAIM, known.model_dump_json())

    def list_files(self, listing: Listing) -> list[RemoteFile]:
        """Return the files at the paths, and those in the folders at the paths."""
        return [file for path in listing.paths for file in self._files(self._inside(path))]

    def cleanup(self) -> None:
        """End everything that runs for the root; its files are kept."""
        self._local.cleanup()

    def remove(self) -> None:
        """Remove the root, and the shipped code if no other study of this user is on the host."""
        shutil.rmtree(self._root)
        studies, work_dir = self._root.parent, self._root.parent.parent
        with suppress(FileNotFoundError):  # a host with the same home does this, too
            if any(studies.iterdir()):
                return
            studies.rmdir()
            shutil.rmtree(work_dir / "code")
            for left in work_dir.glob("incoming-*.tar.gz"):  # left by a controller killed while sending
                left.unlink()
            if not any(work_dir.iterdir()):
                work_dir.rmdir()

    def _refuse_another_machine(self) -> None:
        """Raise ServiceError if workers of this root were started on another machine, whose processes are not seen."""
        state, file, here = LocalState(self._root), self._root / _MACHINE, _this_machine()
        with state.service_lock():
            there = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
            if there == here:
                return
            ids = {_id_in(there), _id_in(here)}  # a machine that has another name now, or no id, may be the same
            if len(ids - {""}) > 1 and state.workers():
                raise ServiceError(
                    f"its name leads to several machines: this is {here}, and the study's jobs were started on "
                    f"{there}; give one machine's own address in 'host', or, if that one is gone, remove {file} there"
                )
            write_aside(file, here)

    def _end(self, job_id: str) -> None:
        """Cancel a job in a thread, because that may take the whole grace period; later calls report the outcome."""
        if job_id not in self._ending or not self._ending[job_id].is_alive():
            self._ending[job_id] = threading.Thread(target=self._local.cancel, args=[_handle(job_id)])
            self._ending[job_id].start()

    def _is_ending_some(self) -> bool:
        """Whether a job has not ended yet that was asked to: the next may train the same trials, in the same files."""
        return any(thread.is_alive() for thread in self._ending.values())

    @property
    def _local(self) -> LocalService:
        if self._service is None:
            raise ServiceError("the host's agent was asked before it was opened")
        return self._service

    def _begin(self, job_id: str) -> Known | None:
        """Return what the controller had of a job when it submitted it; None if it has not."""
        try:
            return Known.model_validate_json((job_dir(self._root, job_id) / _CLAIM).read_bytes())
        except (FileNotFoundError, ValidationError):  # an earlier version wrote the claim alone
            return None

    def _news(self, job_id: str, known: Known, share: int) -> JobNews | None:
        """Return what is new about a job, with at most `share` bytes each of its events (but a long one) and log."""
        begin = self._begin(job_id)
        if begin is None or begin.claim != known.claim:
            return None
        folder = job_dir(self._root, job_id)
        state = self._local.status(_handle(job_id))
        log, more_log = _read(folder / "job.log", known.log - begin.log, share)
        new = known.events - begin.events
        events, more_events = _read(folder / "events.jsonl", new, share)
        if more_events and b"\n" not in events:
            events, more_events = _read(folder / "events.jsonl", new, LONGEST_EVENT)
        events = events[: events.rfind(b"\n") + 1]
        checkpoints: list[RemoteFile] = []
        if events or state.status.finished:
            spec = read_whole(folder / "job.json", JobSpec.model_validate_json)
            for member in spec.members if spec is not None and not is_node_job(job_id) else ():
                checkpoints += self._hold(trial_dir(self._root, member.trial))
        files = [file for file in self._files(folder) if Path(file.path).name not in KEPT]
        return JobNews(
            state=state,
            events=events.decode("latin-1"),
            log=log.decode("latin-1"),
            more=more_events or more_log,
            checkpoints=checkpoints,
            files=files if state.status.finished else [],
            invitation=_read(folder / INVITATION, 0, LONGEST_INVITATION)[0].decode("latin-1"),
        )

    def _bring(self, job_id: str, text: str) -> None:
        """Put an invitation where the process of a job waits for it."""
        file = job_dir(self._root, job_id) / INVITATION
        if file.parent.is_dir() and (not file.exists() or file.read_text(encoding="latin-1") != text):
            write_private(file, text)

    def _hold(self, folder: Path) -> list[RemoteFile]:
        """Return the files in a trial's folder, and keep them until the next poll, whatever its job drops meanwhile."""
        (self._root / _HELD).mkdir(exist_ok=True)
        for _ in range(_LISTS_AGAIN):
            listed = list(self._files(folder))
            with suppress(FileNotFoundError):  # one has been replaced by a newer one, which is to be listed, too
                return [self._link(file) for file in listed]
        return listed

    def _link(self, file: RemoteFile) -> RemoteFile:
        path = f"{_HELD}/{file.inode}"
        held = self._root / path
        try:
            os.link(self._root / file.path, held)
        except FileExistsError:
            pass  # held since an earlier poll
        except FileNotFoundError:
            raise
        except OSError:  # there are no hard links here
            return file
        if held.stat().st_ino != file.inode:  # it was replaced meanwhile
            held.unlink()
            raise FileNotFoundError(file.path)
        return file.model_copy(update={"held": path})

    def _release(self, kept: Collection[str]) -> None:
        """Remove the links that the answer to this poll does not name."""
        for link in (self._root / _HELD).glob("*"):
            if f"{_HELD}/{link.name}" not in kept:
                link.unlink()

    def _files(self, path: Path) -> Iterator[RemoteFile]:
        entries = sorted(path.iterdir()) if path.is_dir() else [path]
        for entry in entries:
            try:
                is_named = entry.name.isprintable() and not entry.name.startswith(".")  # JSON has no other bytes
                if is_named and not entry.is_symlink() and entry.is_file():
                    about, digest = entry.stat(), manifest_digest(entry)
                    place = str(entry.relative_to(self._root))
                    yield RemoteFile(path=place, size=about.st_size, inode=about.st_ino, digest=digest)
            except FileNotFoundError:
                continue  # a checkpoint replaced by a newer one

    def _place(self, upload: Upload) -> None:
        incoming = self._inside(upload.incoming)
        for path in upload.paths:
            target = self._inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.new")
            aside.unlink(missing_ok=True)
            os.link(incoming, aside)
            aside.replace(target)
        incoming.unlink()

    def _inside(self, path: str) -> Path:
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root):
            raise ServiceError(f"path '{path}' leads out of {self._root}; give one relative to it")
        return place


def _this_machine() -> str:
    """Return a name for this machine that outlives a boot. Machines that were copied may have the same id."""
    identity = Path("/etc/machine-id")
    return f"{platform.node()} ({identity.read_text().strip() if identity.exists() else ''})"


def _id_in(machine: str) -> str:
    """Return the id in such a name; empty if there is none."""
    return machine.rpartition("(")[2].removesuffix(")")


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="local", job_id=job_id)


def _read(path: Path, offset: int, size: int) -> tuple[bytes, bool]:
    """Return up to `size` bytes of a file from `offset` on, and whether there are more."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset))
            data = file.read(size + 1)
    except FileNotFoundError:
        return b"", False
    return data[:size], len(data) > size


def answer(agent: HostAgent, line: str) -> Answer:
    """Handle a request and return the answer."""
    request = Request.model_validate_json(line)
    try:
        match request.call:
            case "open":
                return Answer(result=json.dumps(agent.open(Opening.model_validate_json(request.message))))
            case "poll":
                return Answer(result=agent.poll(Poll.model_validate_json(request.message)).model_dump_json())
            case "submit":
                agent.submit(Submission.model_validate_json(request.message))
            case "list":
                files = agent.list_files(Listing.model_validate_json(request.message))
                return Answer(result=json.dumps([file.model_dump() for file in files]))
            case "cleanup":
                agent.cleanup()
            case "remove":
                agent.remove()
            case unknown:
                return Answer(error=f"there is no call '{unknown}'")
    except (NasflowError, OSError) as error:
        return Answer(error=clean_text(str(error)))
    return Answer()


def main() -> None:
    """Answer requests until the connection ends or has been silent for `SILENCE` seconds."""
    for stream in (sys.stdin, sys.stdout):  # the locale's encoding need not be UTF-8
        assert isinstance(stream, io.TextIOWrapper)  # noqa: S101 - nobody has replaced them
        stream.reconfigure(encoding="utf-8")
    agent = HostAgent(Path(sys.argv[1]))
    logging.basicConfig(stream=sys.stderr)
    sys.stdout.write(f"{GREETING}\n")
    sys.stdout.flush()
    while select.select([sys.stdin], [], [], SILENCE)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        sys.stdout.write(answer(agent, line).model_dump_json() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
