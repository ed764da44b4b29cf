"""Messages between a controller and the agent on a host: one JSON object per line, answers in order."""

from pydantic import BaseModel, ConfigDict, Field

from nasflow.training_service.base import JobState

LONGEST_INVITATION = 4096  # characters


class Message(BaseModel):
    """Base class of messages."""

    model_config = ConfigDict(frozen=True)


class Opening(Message):
    """The first call: how to run jobs on the host.

    Attributes:
        runner: `module:function` that runs one `job.json`.
        preload: modules that a worker imports before its first job.
        secrets: what jobs need of the search's secrets.
        slots: as in the config, like the attributes below.
    """

    runner: str
    preload: list[str]
    secrets: dict[str, str] = Field(default={}, repr=False)
    pass_env: list[str] = []
    slots: int | None
    gpu_indices: list[int] | None
    max_trials_per_gpu: int
    devices_per_job: int = 1
    use_active_gpu: bool
    reuse: bool
    idle_timeout: float
    abandoned_after: float


class RemoteFile(Message):
    """A file on a host.

    Attributes:
        path: relative to the root there.
        inode: the same for all hard links to one file.
        digest: its SHA-256 if it is a manifest of what ranks have saved: parts with the same names are other files if
            their manifests differ.
        held: a hard link to it, until the next poll, relative to the root there; empty if there is none.
    """

    path: str
    size: int
    inode: int
    digest: str = ""
    held: str = ""


class Known(Message):
    """What the controller already has of a job.

    Attributes:
        claim: unique for each time that the job is given to a host.
        events: bytes of its event lines, of all its runs on whatever host; `log` likewise of its log.
    """

    claim: str
    events: int
    log: int


class Poll(Message):
    """Asks for news of the host's jobs. Any other job there is no longer wanted and is ended.

    Attributes:
        cancel: jobs to end.
        stop: trials that their jobs are to end after their present epoch.
        invitations: for processes of jobs on several hosts, those that the process on the first host has left.
    """

    jobs: dict[str, Known]
    cancel: list[str] = []
    stop: list[int] = []
    invitations: dict[str, str] = Field(default={}, repr=False)


class JobNews(Message):
    """What is new about one job.

    Attributes:
        state: read before the rest, so once it is finished and `more` is false, nothing further comes.
        events: whole lines from the offset on.
        log: text from the offset on.
        checkpoints: all checkpoints of its trials, if there are new events.
        files: all files in the job's folder, if it has finished.
        invitation: to its processes on other hosts; empty if there is none.
    """

    state: JobState
    events: str
    log: str
    more: bool
    checkpoints: list[RemoteFile]
    files: list[RemoteFile]
    invitation: str = Field(default="", max_length=LONGEST_INVITATION, repr=False)


class News(Message):
    """The answer to Poll.

    Attributes:
        jobs: None for one that was not submitted here under its claim.
        free: number of further jobs that the host can take now.
    """

    jobs: dict[str, JobNews | None]
    free: int


class Upload(Message):
    """A file that the controller has put at `incoming`, and its final paths; all relative to the root."""

    incoming: str
    paths: list[str]


class Submission(Message):
    """A job for the host.

    Attributes:
        spec: the JobSpec.
        known: what the controller has of the job's earlier runs, after which the host's events and log come.
            Submitting again with the same claim changes nothing.
        uploads: checkpoints of its trials that the host lacks.
    """

    spec: str
    known: Known
    uploads: list[Upload]


class Listing(Message):
    """Asks for the files at the paths, and those in the folders at the paths."""

    paths: list[str]


class Request(Message):
    """One call; calls without arguments have only a name."""

    call: str
    message: str = ""


class Answer(Message):
    """The result of a call, or why it failed."""

    result: str = ""
    error: str | None = None
