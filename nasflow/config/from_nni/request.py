"""What an experiment asks of a training service, and the section that this becomes."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from nasflow.config.from_nni.entries import Entries, Notes

MOUNT = "/mnt/nasflow"
"""Where a shared file system is expected on this machine and on the nodes."""

_ALONE = "a job trains many trials on one GPU; several GPUs for one trial: see docs/from-nni.md"


@dataclass
class Section:
    """A section `training_service`.

    Attributes:
        kind: of the service.
        fields: the keys that it may have.
        work_dir: where the search must keep its jobs for the service to see them; None for anywhere.
    """

    kind: str
    fields: Collection[str]
    notes: Notes
    work_dir: str | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values["kind"] = self.kind

    def put(self, key: str, value: Any, *names: str) -> None:
        """Set the first of the keys `names` that the kind has; note `key`, of NNI's, if it has none of them."""
        if value is None:
            return
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            self.notes.add(key, f"the kind {self.kind} has no key for it; left out")
        else:
            self.values[name] = value


@dataclass
class Request:
    """What an experiment asks of one service.

    Attributes:
        service: its section.
        trial: the section `trial` of a config of version 1; empty in version 2.
        shared: the section `sharedStorage`.
        concurrency: how many trials may run at a time.
        gpus: of a trial, by the experiment; None if it does not say.
        machines: the machines of version 1.
    """

    service: Entries
    trial: Entries
    shared: Entries
    concurrency: int | None
    gpus: int | None
    machines: list[Entries]

    def homes(self) -> tuple[Entries, ...]:
        """Return the sections in which a key of a service may stand."""
        return (self.trial, self.service)

    def where(self, *names: str) -> Entries:
        """Return the section that has one of these keys."""
        return self.trial if self.trial.has(*names) else self.service

    def gpus_of_a_trial(self) -> int | None:
        """Return the GPUs that a trial asks for; more than one are noted."""
        names = ("trialGpuNumber", "gpuNumber", "gpuNum")
        home = self.where(*names)
        key, count = home.key(*names), home.count(*names)
        count = self.gpus if count is None else count
        if count is not None and count > 1:
            home.notes.add(key, _ALONE)
        return count

    def put_jobs(self, section: Section) -> None:
        """Put how many jobs may run at a time, and what each takes."""
        section.put("trialConcurrency", self.concurrency or None, "max_jobs")
        gpus = self.gpus_of_a_trial()
        section.put("trialGpuNumber", min(gpus, 1) if gpus is not None else None, "gpus_per_job")
        for home in self.homes():
            names = ("trialCpuNumber", "cpuNumber", "cpuNum")
            key, cpus = home.key(*names), home.count(*names)
            section.put(key, cpus or None, "cpus_per_job")
            names = ("trialMemorySize", "memorySize", "memoryMB")
            key = home.key(*names)
            section.put(key, home.gigabytes(*names) or None, "memory_gb")

    def put_image(self, section: Section) -> None:
        """Put the container image."""
        for home in self.homes():
            names = ("dockerImage", "image")
            key = home.key(*names)
            section.put(key, home.text(*names), "image", "environment")

    def put_shared_folder(self, section: Section, key: str, local: str | None, remote: str | None) -> None:
        """Put a folder that nodes see as `remote`; the search must work in it."""
        if local is None or remote is None:
            return
        section.work_dir = f"{local.rstrip('/')}/nasflow-runs"
        if local.rstrip("/") != remote.rstrip("/"):
            section.put(key, {"local": local, "remote": remote}, "storage")

    def finish(self, section: Section) -> None:
        """Translate the shared storage, and note what is left of the service."""
        if self.shared:
            _put_shared_storage(self, section)
        if section.kind not in ("local", "ssh") and section.work_dir is None and "storage" not in section.values:
            self.service.notes.add(self.service.path or "trainingService", _NO_FOLDER)
        self.service.drop("not needed: jobs run in warm workers, or several trials in one job", "reuseMode", "reuse")
        self.service.drop("not needed: jobs need no way back to the controller", "nniManagerIp")
        self.service.drop("`nasflow run CONFIG --verbose`", "debug")
        self.service.drop(TRIAL_COMMAND, "trialCommand", "command")
        self.service.drop("the config's folder, or `base_dir`, has the code", "trialCodeDirectory", "codeDir")
        self.service.rest()


_NO_FOLDER = (
    "files: nodes have to see the search's `work_dir` under the same path, or the section has to name a storage"
)
TRIAL_COMMAND = (
    "trials are candidates of a space, not programs; their code is `space.target`, `evaluator.data` and, if need be, "
    "`evaluator.module`: write these, and put their names in place of the printed ones; or have your program train, by "
    "`evaluator: {kind: command}`"
)


def _put_shared_storage(request: Request, section: Section) -> None:
    shared = request.shared
    kind = (shared.text("storageType") or "").lower()
    local, remote = shared.text("localMountPoint"), shared.text("remoteMountPoint")
    key = shared.path
    if section.kind in ("local", "ssh"):
        shared.drop("not needed: files come back from hosts; `checkpoint.url` copies checkpoints to a storage",
                    "nfsServer", "exportedDirectory", "storageAccountName", "storageAccountKey", "containerName",
                    "localMounted")  # fmt: skip
    elif kind == "nfs":
        request.put_shared_folder(section, key, local, remote)
        shared.drop("mount it yourself, here at localMountPoint and on the nodes at remoteMountPoint", "nfsServer",
                    "exportedDirectory", "localMounted")  # fmt: skip
    elif kind == "azureblob":
        account = shared.text("storageAccountName")
        secret = shared.secret("AZURE_STORAGE_KEY", "storageAccountKey")
        container = shared.text("containerName") or "nasflow"
        options = {"account_name": account, "account_key": secret}
        put = {name: value for name, value in options.items() if value is not None}
        section.put(key, {"url": f"abfs://{container}/nasflow", "options": put}, "storage")
        shared.drop("not needed: files travel by the storage's own API", "localMounted")
