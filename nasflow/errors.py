"""The exceptions of nasflow. Everything it raises on purpose is a `NasflowError`."""


class NasflowError(Exception):
    """Base of every error nasflow raises on purpose."""


class UserError(NasflowError):
    """A mistake that the user can fix: one sentence that says what, where, and how. The command line exits with 2."""


class ConfigError(UserError):
    """The search config is wrong; the message names the key."""


class SpaceError(UserError):
    """A model space, or an architecture that does not fit it; the message names the label."""


class InvalidArchitecture(SpaceError):  # noqa: N818  # users raise it to say just this
    """A combination of choices that makes no sense; a user's build may raise it. Searches skip it."""


class RefusedError(ConfigError):
    """A mistake that fails a search as a whole, found by a job: no trial is to blame, and the search ends."""


class SharedLayerError(RefusedError):
    """A layer that several trials would train, because it is made outside of `build`; the message names it."""


class DataError(RefusedError):
    """Data that no candidate can be trained on by the evaluator that is configured."""


class StudyError(UserError):
    """A study that is missing, in use by another process, or does not match the config."""


class ServiceError(UserError):
    """A training service that can't do what its config asks for."""


class CheckpointError(NasflowError):
    """A checkpoint that can't be read; the message names the file."""


class JobError(NasflowError):
    """A job failed. The two subclasses below say what caused it."""


class InfrastructureError(JobError):
    """Something outside the job ended it (host gone, killed from outside): start it again from checkpoints."""


class PreemptedError(InfrastructureError):
    """The job was asked to end; `saved` says whether it has saved what it had trained since its start."""

    def __init__(self, message: str, saved: bool):
        super().__init__(message)
        self.saved = saved


class TrialError(JobError):
    """The job's members made it fail (exception, NaN, crash): they are retried alone."""


class TrainingEnded(NasflowError):  # noqa: N818  # says what has happened, which is no error
    """Raised by `report` in a user's training function: its trial ends here, so nothing that it still trains counts."""


class InterruptedSearchError(NasflowError):
    """The controller was asked to stop; the study stays resumable."""
