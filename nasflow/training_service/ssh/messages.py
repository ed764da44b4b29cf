"""What a controller and the agent of one of its hosts say to each other: a JSON object a line, answers in order."""

from pydantic import BaseModel, ConfigDict

from nasflow.training_service.base import JobState

KEPT = frozenset({"events.jsonl", "job.log", "job.json", "exit.json", "cancel", "claim"})
"""In a job's folder: what each side writes by itself, and no one copies as a file."""


class Message(BaseModel):
    """Base of all of them."""

    model_config = ConfigDict(frozen=True)


class Opening(Message):
    """The first call: how jobs are run on the host.

    Attributes:
        runner: `module:function` that runs one `job.json`.
        preload: modules that a worker imports before its first job.
        slots: as in the config, and so those below.
    """

    runner: str
    preload: list[str]
    slots: int | None
    gpu_indices: list[int] | None
    max_trials_per_gpu: int
    use_active_gpu: bool
    reuse: bool
    idle_timeout: float
    abandoned_after: float


class RemoteFile(Message):
    """A file on a host.

    Attributes:
        path: relative to the root there.
        inode: the same for all names of one file.
    """

    path: str
    size: int
    inode: int


class Known(Message):
    """What the controller has of a job.

    Attributes:
        claim: differs for each time that the job is given to a host.
        events: bytes of its event lines, and so of its log.
    """

    claim: str
    events: int
    log: int


class Poll(Message):
    """Asks for news of the host's jobs. What else runs there is no longer wanted and is ended."""

    jobs: dict[str, Known]
    cancel: list[str] = []


class JobNews(Message):
    """What is new of one job.

    Attributes:
        state: asked before the rest was read: once it is finished and there is no `more`, nothing further comes.
        events: whole lines from the offset on.
        log: from the offset on.
        checkpoints: all that its trials have, if there are new events.
        files: all in the job's folder, if it has finished.
    """

    state: JobState
    events: str
    log: str
    more: bool
    checkpoints: list[RemoteFile]
    files: list[RemoteFile]


class News(Message):
    """The answer to Poll.

    Attributes:
        jobs: None for one that was not submitted here under its claim.
        free: how many more jobs the host can take now.
    """

    jobs: dict[str, JobNews | None]
    free: int


class Upload(Message):
    """A file that the controller has put at `incoming`, and the names it shall have; relative to the root."""

    incoming: str
    paths: list[str]


class Submission(Message):
    """A job for the host.

    Attributes:
        spec: the JobSpec.
        events: what the job's earlier runs told, and `log` what they printed.
        uploads: checkpoints of its trials that the host has not.
        claim: the same again changes nothing.
    """

    spec: str
    events: str
    log: str
    uploads: list[Upload]
    claim: str


class Listing(Message):
    """Asks for files: those at the paths, and those in the folders there."""

    paths: list[str]


class Request(Message):
    """One of the calls; those without a message of their own have just a name."""

    call: str
    message: str = ""


class Answer(Message):
    """What a call gave, or why it could not be done."""

    result: str = ""
    error: str | None = None
