"""The contract of a storage: what a service for a cluster asks of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.training_service.cluster.runs import Run


class StorageSilentError(ServiceError):
    """The storage did not answer. Whether it carried out the request is unknown."""


@dataclass(frozen=True)
class RunOptions:
    """How a node runs jobs.

    Attributes:
        runner: `module:function` that runs one `job.json` and returns an exit code.
        abandoned_after: seconds without a call of a controller after which a job ends itself.
        controller: the file here that calls of controllers modify.
    """

    runner: str
    abandoned_after: float
    controller: Path


class StorageClosedError(ServiceError):
    """The storage can't be reached with what is known here; what could be done without it is done."""


class Storage(ABC):
    """Gives nodes what runs need, and brings what they write into the study's root here.

    All that nodes write is read here, in the root (`runs`, `nasflow.job.spec`), so readers need no storage.
    Callers of every method but `validate` and the properties hold the lock of the records.

    Attributes:
        answers_within: seconds until a run that was asked to end is considered hung.
    """

    answers_within: float

    @property
    @abstractmethod
    def python(self) -> str:
        """The interpreter on nodes."""

    @property
    @abstractmethod
    def import_path(self) -> str | None:
        """Its PYTHONPATH; None to leave that as it is there."""

    @property
    @abstractmethod
    def root(self) -> str | None:
        """The study's root on nodes; None if they don't see it."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """An existing folder on nodes."""

    def validate(self) -> None:
        """Raise ServiceError, in one clear sentence, if nodes can't have the files of this study."""
        return

    @abstractmethod
    def log(self, job_id: str) -> str:
        """Return the path on nodes of the file to which a run's own program writes what it prints."""

    @abstractmethod
    def why_not(self, job_id: str) -> str:
        """Return the part of a sentence that says where to look if a run's own program does not begin."""

    @abstractmethod
    def program(self, run: Run) -> Sequence[str]:
        """Return the arguments of the interpreter on the node that runs a run."""

    def secrets(self) -> Mapping[str, str]:
        """Return environment variables of the program that have secrets in them."""
        return {}

    def has_secrets(self) -> bool:
        """Return whether there are any in `secrets`, also if they can't be read here."""
        return False

    def why_closed(self) -> str:
        """Return why what is stored can't be reached with what is known here; empty if it can, or nothing is."""
        return ""

    def unreachable_secrets(self) -> Sequence[str]:
        """Return the keys of secrets that the program needs and can't read by itself, not even in its environment."""
        return ()

    def needed_variables(self) -> frozenset[str]:
        """Return the environment variables that the program reads by itself unless `secrets` reach it."""
        return frozenset()

    def as_seen_there(self, spec: JobSpec) -> JobSpec:
        """Return the spec that is written to a job's `job.json`."""
        return spec

    def give(self, run: Run) -> None:
        """Put what a run needs where its node finds it; called before the cluster gets the run, perhaps repeatedly.

        Raises:
            StorageSilentError: no answer.
        """
        return

    def due(self) -> bool:
        """Return whether a call of `collect` would look at the storage now. Callers need no lock."""
        return False

    def collect(self, runs: Sequence[Run]) -> None:
        """Bring here what these runs have written, tell them what they are to know, and remove all that others left.

        A storage that does not answer is asked again by a later call.

        Args:
            runs: all that may still write.
        """
        return

    def collected_at(self) -> float:
        """Return the time (monotonic) up to which all that runs had written is here."""
        return float("inf")

    def clean(self) -> bool:
        """Remove everything of this root but what is in it here, and return whether that was possible."""
        return True
