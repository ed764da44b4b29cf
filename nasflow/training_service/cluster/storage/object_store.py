"""Storage for nodes that share no folder with this machine: an object store, or whatever fsspec knows.

::

    <url>/nasflow-<id>/code/<digest>.tar.gz        the user's code
                       <run>/input                 the run's job.json and the checkpoints of its members
                             control               what it is to know, renewed here
                             <sender>/began        a process on a node has begun the run
                                      00000000     what it has written, in numbered parts (`parcel`)

One listing for each look finds what is new of all runs. A part is removed once it is here, and all that is of a run
once it has ended. A run whose `control` is gone ends itself and removes what it has written since.
"""

import json
import logging
import os
import re
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import BlockSecret, EnvironmentSecret, SecretText, secrets_of
from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.job.disk_full import is_full
from nasflow.job.events import Evicted, Final, each_line, parse_event, read_lines
from nasflow.job.spec import JobSpec, job_dir, stop_mark, trial_dir
from nasflow.system.small_files import write_aside
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.storage import checked, parcel
from nasflow.training_service.cluster.storage.base import RunOptions, Storage, StorageSilentError
from nasflow.training_service.cluster.storage.bucket import KEY, SECRETS, Bucket, texts_of
from nasflow.training_service.cluster.storage.parcel import Control, File, Input
from nasflow.training_service.cluster.storage.received import RefusedError, begin, received, refuse, take
from nasflow.training_service.files.incoming import CHECKPOINT
from nasflow.training_service.ship.code_dir import collect

_LOG = logging.getLogger(__name__)

_MOST_AT_ONCE = 5.0  # seconds for which a look brings parts here, because others wait for the lock
_LONGEST_PAUSE = 60.0  # seconds
_BEATS = 10  # in the time after which a job is abandoned
_LONGEST_BEAT = 600.0  # seconds
_SENDER = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"\d{8}")


class ObjectStore(Storage):
    """Keeps the files of runs in an object store while they are on their way.

    Args:
        config: the object store.
        root: the study's root.
        options: how its jobs run.
    """

    answers_within = 0.0  # a run looks rarely, so the cluster ends it

    def __init__(self, config: ObjectStoreConfig, root: Path, options: RunOptions):
        self._config, self._root, self._options = config, root, options
        self._records = options.controller.parent
        self._id_file = self._records / "storage"
        self._opened: Bucket | None = None
        self._study = ""
        self._texts: Mapping[str, str] | None = None
        self._code: dict[Path, str] = {}
        self._told: dict[str, Control] = {}
        self._specs: dict[str, JobSpec] = {}
        self._collected_at = self._next = float("-inf")
        self._silent = False

    @property
    def python(self) -> str:  # noqa: D102
        return self._config.python

    @property
    def import_path(self) -> None:  # noqa: D102
        return None

    @property
    def root(self) -> None:  # noqa: D102
        return None

    @property
    def folder(self) -> str:  # noqa: D102
        return "/"

    def log(self, job_id: str) -> str:  # noqa: D102
        return os.devnull

    def why_not(self, job_id: str) -> str:  # noqa: D102
        module = "nasflow.training_service.cluster.storage.carrier"
        return f"'{self._config.python} -m {module} --help' on a node may show why"

    def validate(self) -> None:
        """Write, list and remove an object, also one that an earlier check has left, and collect nothing.

        Raises:
            ServiceError: that is not possible.
        """
        try:
            for earlier in checked.unfinished(self._config):
                Bucket(self._config, self._known_texts(), earlier).remove_all()
                checked.forget(self._config, earlier)
            name = f"nasflow-check-{secrets.token_hex(8)}"
            bucket = Bucket(self._config, self._known_texts(), name)
            with checked.noted(self._config, name):
                with tempfile.NamedTemporaryFile() as file:
                    bucket.put(Path(file.name), "object")
                there = bucket.list()
                bucket.remove_all()
        except FileNotFoundError as error:
            raise ServiceError(f"{KEY}.url: {error}") from None
        except StorageSilentError as error:
            raise ServiceError(f"{error}; check training_service.storage") from None
        if list(there) != ["object"]:
            raise ServiceError(f"{KEY}.url: what is written there is not listed; check training_service.storage")

    def program(self, run: Run) -> Sequence[str]:  # noqa: D102
        study = self._id_file.read_text() if self._id_file.exists() else "nothing-given"  # as in a dry run
        return [
            *("-P", "-m", "nasflow.training_service.cluster.storage.carrier"),
            *(run.job_id, run.token, f"{study}/{run.name}", "--storage", self._config.model_dump_json()),
            *("--runner", self._options.runner, "--abandoned-after", str(self._options.abandoned_after)),
        ]

    def secrets(self) -> Mapping[str, str]:  # noqa: D102
        return {SECRETS: json.dumps(self._known_texts())} if self.has_secrets() else {}

    def has_secrets(self) -> bool:  # noqa: D102
        return any(not isinstance(secret, SecretUrl) or secret.has_password for _, secret in secrets_of(self._config))

    def why_closed(self) -> str:  # noqa: D102
        if self._id_file.exists():
            try:
                self._known_texts()
            except ConfigError as error:
                return str(error)
        return ""

    def unreachable_secrets(self) -> Sequence[str]:  # noqa: D102
        return [f"storage.{place}" for place, secret in secrets_of(self._config) if _is_written(secret)]

    def needed_variables(self) -> frozenset[str]:  # noqa: D102
        found = (secret for _, secret in secrets_of(self._config))
        return frozenset(secret.env for secret in found if isinstance(secret, EnvironmentSecret))

    def give(self, run: Run) -> None:  # noqa: D102
        begin(run)
        spec, bucket = self._spec(run), self._bucket()
        code = self._ship(spec.base_dir)
        names: dict[tuple[int, int], list[str]] = defaultdict(list)  # trials that are saved together share files
        with tempfile.TemporaryDirectory(prefix="input-", dir=self._records) as aside, ExitStack() as stack:
            opened: dict[tuple[int, int], BinaryIO] = {}
            for path in (job_dir(self._root, run.job_id) / "job.json", *self._checkpoints(spec)):
                about = path.stat()
                identity = about.st_dev, about.st_ino
                names[identity].append(str(path.relative_to(self._root)))
                if identity not in opened:
                    opened[identity] = stack.enter_context(path.open("rb"))
            sizes = (os.fstat(file.fileno()).st_size for file in opened.values())
            files = [File(paths=paths, size=size) for paths, size in zip(names.values(), sizes, strict=True)]
            whole = Path(aside) / "input"
            parcel.write(whole, Input(files=files, version=version("nasflow"), code=code), list(opened.values()))
            bucket.put(whole, f"{run.name}/input")
        self._tell(run)

    def due(self) -> bool:  # noqa: D102
        return time.monotonic() >= self._next

    def collect(self, runs: Sequence[Run]) -> None:  # noqa: D102
        start = time.monotonic()
        if start < self._next or not self._id_file.exists():
            return
        try:
            if self._sync(runs, start + _MOST_AT_ONCE):
                self._collected_at = start
            self._silent = False
        except StorageSilentError as error:
            self._say_silent(str(error))
        except OSError as error:
            if not is_full(error):
                raise
            self._say_silent(f"{error}: make room for {self._root}")
        end = time.monotonic()
        self._next = end + max(self._config.poll_seconds, min(end - start, _LONGEST_PAUSE))

    def _say_silent(self, why: str) -> None:
        if not self._silent:
            _LOG.warning("%s; jobs continue, and their results come later", why)
        self._silent = True

    def collected_at(self) -> float:  # noqa: D102
        return self._collected_at

    def clean(self) -> bool:  # noqa: D102
        if not self._id_file.exists():
            return True
        try:
            self._bucket().remove_all()
        except (StorageSilentError, FileNotFoundError) as error:
            _LOG.warning("%s; objects are left there, and `nasflow cleanup` removes them later", error)
            return False
        return True

    def _sync(self, runs: Sequence[Run], deadline: float) -> bool:
        """Exchange news with all runs, and return whether all that was there is here."""
        bucket = self._bucket()
        there: dict[str, dict[str, int]] = defaultdict(dict)
        for path, size in bucket.list().items():
            name, _, inside = path.partition("/")
            there[name][inside] = size
        self._code = {folder: digest for folder, digest in self._code.items() if f"{digest}.tar.gz" in there["code"]}
        known = {run.name: run for run in runs}
        garbage = [f"{name}/{inside}" for name in there if name not in {*known, "code"} for inside in there[name]]
        complete = True
        try:
            for name, run in known.items():
                complete &= self._take_parts(run, there[name], deadline, garbage)
                if run.ended() is not None:
                    self._drop_stop_marks(run)
                if "input" in there[name]:
                    self._tell(run)
        finally:
            bucket.remove(garbage)
        for cache in (self._told, self._specs):
            for name in cache.keys() - known.keys():
                del cache[name]
        return complete

    def _take_parts(self, run: Run, there: Mapping[str, int], deadline: float, garbage: list[str]) -> bool:
        """Bring the new parts of a run here, add those that are here to `garbage`, and return whether these are all."""
        parts: dict[str, dict[int, int]] = defaultdict(dict)
        for path, size in there.items():
            sender, _, name = path.partition("/")
            if _SENDER.fullmatch(sender) and name == "began":
                run.file("began").touch()
            elif _SENDER.fullmatch(sender) and _NUMBER.fullmatch(name):
                parts[sender][int(name)] = size
        known = received(run)
        if known is None or not parts:
            return True
        sender = known.sender or min(parts)
        garbage += [f"{run.name}/{sender}/{number:08d}" for number in parts[sender] if number < known.parts]
        for number in range(known.parts, known.parts + len(parts[sender])):
            if number not in parts[sender] or run.ended() is not None:
                return True
            if time.monotonic() > deadline:
                return False
            path = f"{run.name}/{sender}/{number:08d}"
            if self._take_part(run, sender, path, parts[sender][number]):
                garbage.append(path)
        return True

    def _take_part(self, run: Run, sender: str, path: str, size: int) -> bool:
        """Bring a part here, and return whether it was there as a whole."""
        aside = self._records / "incoming"
        try:
            if size > self._config.max_gigabytes * 1e9:
                raise RefusedError(f"it has {size:,} bytes, more than {KEY}.max_gigabytes allows")
            self._bucket().get(path, aside, size)
            with aside.open("rb") as file:
                take(run, sender, file, self._spec(run))
        except (FileNotFoundError, parcel.UnfinishedError):
            return False
        except RefusedError as error:
            _LOG.warning("job %s is given up, because what its node sent is refused: %s", run.job_id, error)
            refuse(run, error)
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _drop_stop_marks(self, run: Run) -> None:
        """Remove the marks of trials that have ended: the run's program has removed only those on its node."""
        marks = {member.trial: stop_mark(self._root, member.trial) for member in self._spec(run).members}
        if not any(mark.exists() for mark in marks.values()):
            return
        for line in each_line(partial(read_lines, job_dir(self._root, run.job_id) / "events.jsonl")):
            try:
                event = parse_event(line)
            except ValidationError:  # reported where events are read
                continue
            if isinstance(event, Final | Evicted) and event.trial in marks:
                marks[event.trial].unlink(missing_ok=True)

    def _tell(self, run: Run) -> None:
        """Write what a run is to know, if that has changed."""
        trials = [member.trial for member in self._spec(run).members]
        control = Control(
            ends=not run.is_current(),
            stop=[trial for trial in trials if stop_mark(self._root, trial).exists()],
            beat=int(time.time() / min(_LONGEST_BEAT, self._options.abandoned_after / _BEATS)),
        )
        if self._told.get(run.name) == control:
            return
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_text(control.model_dump_json())
            self._bucket().put(Path(file.name), f"{run.name}/control")
        self._told[run.name] = control

    def _ship(self, base_dir: Path) -> str:
        """Put the user's code into the storage, once, and return its digest."""
        if base_dir not in self._code:
            archive = collect(base_dir, self._config.code, leave_out=[self._root, self._root.parent])
            with tempfile.NamedTemporaryFile(prefix="code-", dir=self._records) as file:
                with Path(file.name).open("wb") as target:
                    digest = archive.write(target)
                self._bucket().put(Path(file.name), f"code/{digest}.tar.gz")
            self._code[base_dir] = digest
        return self._code[base_dir]

    def _checkpoints(self, spec: JobSpec) -> list[Path]:
        folders = [trial_dir(self._root, member.trial) for member in spec.members]
        files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
        return [file for file in files if CHECKPOINT.fullmatch(file.name)]

    def _spec(self, run: Run) -> JobSpec:
        if run.name not in self._specs:
            content = (job_dir(self._root, run.job_id) / "job.json").read_bytes()
            self._specs[run.name] = JobSpec.model_validate_json(content)
        return self._specs[run.name]

    def _known_texts(self) -> Mapping[str, str]:
        if self._texts is None:
            self._texts = texts_of(self._config)
        return self._texts

    def _bucket(self) -> Bucket:
        study = self._id()
        if self._opened is None or self._study != study:  # a clean-up, perhaps by another process, ends a study there
            self._opened, self._study = Bucket(self._config, self._known_texts(), study), study
            self._code, self._told = {}, {}
        return self._opened

    def _id(self) -> str:
        """Return the name of this study's folder in the storage; another machine's study has another."""
        if not self._id_file.exists():
            write_aside(self._id_file, f"nasflow-{secrets.token_hex(8)}")
        return self._id_file.read_text()


def _is_written(secret: object) -> bool:
    """Whether only this machine can read a secret."""
    return isinstance(secret, SecretText | BlockSecret) or (isinstance(secret, SecretUrl) and secret.has_password)
