"""The spec of a job, `job.json`, and where its files are. Imports no torch, because the controller loads this too.

Everything a job reads or writes is below one root folder, so that a service can keep that root on any machine::

    <root>/jobs/<job_id>/job.json        the JobSpec
                         events.jsonl    what happened, one JSON object a line (nasflow.job.events)
                         job.log         standard output and error
                         activity        what it is doing and since when (nasflow.job.activity)
                         .invitation     how the processes on a trial's other machines find this one (NodeSpec)
    <root>/trials/<number>/epoch-<n>.safetensors    the trial's checkpoint after n epochs (nasflow.checkpoint.names)
                           stop             asks the job to end the trial after its present epoch
                           program          the files of the trial's own program (nasflow.training.program)

Trials of a job that are saved at the same time have one checkpoint file, which has a name, as a hard link, in the
folder of each (nasflow.checkpoint.saver). It can be copied and fetched under any of them.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from nasflow.config.code_files import names_files
from nasflow.config.limits import LimitsConfig
from nasflow.config.search import (
    CheckpointConfig,
    DataConfig,
    EvaluatorConfig,
    MergeConfig,
    Objective,
    PrunerConfig,
    SearchConfig,
    Target,
)
from nasflow.errors import InfrastructureError
from nasflow.kernel_costs import KernelCosts
from nasflow.space.architecture import Architecture

CANNOT_WRITE = 74
"""The exit code (EX_IOERR of sysexits.h) of a job that can no longer write its events."""
DEVICE_FAULT = 86
"""The exit code of a job that can no longer use its GPU, since one of its members computed something there."""
INVITATION = ".invitation"
"""The file of a job on several machines that its service brings from the first one to the others."""


class NodeSpec(BaseModel):
    """Which of the machines of a trial a job's process is on, if its service starts a process on each of them.

    Each has a job.json, that on the first machine is the job's own.

    Attributes:
        number: of the machine; the first one, 0, follows the trial.
        first: the name or address by which the others reach the first; None if all have the root in common, where its
            invitation says that.
    """

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=0)
    first: str | None = None

    @property
    def shares_files(self) -> bool:
        """Whether all machines have the root in common, so that files need not be carried from one to another."""
        return self.first is None


class MemberSpec(BaseModel):
    """One trial inside a job.

    Attributes:
        device: of the job's devices, the one that trains it.
    """

    model_config = ConfigDict(frozen=True)

    trial: int = Field(ge=0)
    architecture: Architecture
    seed: int
    device: int = Field(default=0, ge=0)


class PeerSpec(MemberSpec):
    """A trial that left the job in an earlier start.

    Attributes:
        history: its metrics by epoch, the first epoch first.
        parameters: the number of its model's parameters.
        failed: whether it failed in the epoch after these; otherwise it ended with the last of them.
    """

    history: list[dict[str, float | None]]
    parameters: int
    failed: bool


class JobSpec(BaseModel):
    """One job: some trials of one study that share their data.

    Attributes:
        job_id: unique within the study; letters, digits and dashes.
        evaluator: as in the config, with its searched values still open; each member's architecture chooses them.
        data: the data of all members, with its searched values chosen; None if their own programs load it.
        data_seed: of the order of the batches and of augmentation; the same for every trial of a study.
        base_dir: the folder of the user's code (`file.py:Name` targets).
        merge: whether and how members are fused.
        places: how many trials may train at a time, None for all; the others wait until one leaves.
        pruner: stops members early, by the metrics of `objectives`.
        peers: trials that left in an earlier start, replayed so that scheduling is unchanged.
        limits: how long the job and its parts may take.
        generation: greater for a job that replaces one of an earlier controller (`nasflow.checkpoint.names`).
        kernel_costs: figures by which members are fused, so that they are fused alike wherever the job runs.
        tests: whether it scores its members, which have ended, on the evaluator's test data, and trains nothing.
        copies: the folder of the study's checkpoints below `checkpoint.url`; that of its name if this is empty.
        node: this machine's place among those of a trial on several; None if the job has but one, or starts its
            processes on others by itself.
    """

    model_config = ConfigDict(frozen=True)

    job_id: str = Field(pattern=r"^[A-Za-z0-9-]+$")
    study: str
    space: Target
    evaluator: EvaluatorConfig
    data: DataConfig | None
    checkpoint: CheckpointConfig
    data_seed: int
    base_dir: Path
    members: list[MemberSpec] = Field(min_length=1)
    merge: MergeConfig = MergeConfig()
    places: PositiveInt | None = None
    pruner: PrunerConfig | None = None
    objectives: list[Objective] = []
    peers: list[PeerSpec] = []
    limits: LimitsConfig = LimitsConfig()
    generation: int = Field(default=0, ge=0)
    kernel_costs: KernelCosts = {}
    tests: bool = False
    copies: str = ""
    node: NodeSpec | None = None

    @property
    def nodes(self) -> int:
        """How many machines train one of its trials."""
        parallel = self.evaluator.parallel
        return 1 if parallel is None or self.tests else parallel.nodes

    @classmethod
    def of_search(
        cls,
        config: SearchConfig,
        job_id: str,
        data: DataConfig | None,
        members: Sequence[MemberSpec],
        *,
        places: int | None = None,
        peers: Sequence[PeerSpec] = (),
        generation: int = 0,
        kernel_costs: KernelCosts | None = None,
        tests: bool = False,
        copies: str = "",
        wide: bool = True,
    ) -> "JobSpec":
        """Return a job of a search. At most `places` trials and `merge.max_members` members train at a time.

        The members of one trial always train together. Without `merge.enabled`, they are not fused. With
        `evaluator.parallel`, a `wide` job trains its only trial on several devices at once.
        """
        repeats = config.evaluator.members_per_trial
        most = max(1, config.merge.max_members // repeats)
        apart = repeats > 1 and not config.merge.enabled
        narrow = not wide and config.evaluator.parallel is not None
        return cls(
            job_id=job_id,
            study=config.name,
            space=config.space,
            evaluator=config.evaluator.replaced(parallel=None) if narrow else config.evaluator,
            data=data,
            checkpoint=config.checkpoint,
            data_seed=config.seed,
            base_dir=config.base_dir,
            members=list(members),
            merge=config.merge.replaced(fuse="never") if apart else config.merge,
            places=min(most, places or most),
            pruner=config.pruner,
            objectives=config.objectives,
            peers=list(peers),
            limits=config.limits,
            generation=generation,
            kernel_costs=kernel_costs or {},
            tests=tests,
            copies=copies,
        )


def read_spec(path: Path) -> JobSpec:
    """Return the spec in a `job.json`. Its code starts in the root folder if all of it is in modules of this machine.

    Raises:
        OSError: it can't be read.
        InfrastructureError: it is damaged.
        ValueError: it is of another version.
    """
    content = path.read_bytes()
    try:
        json.loads(content)
    except ValueError as error:
        raise InfrastructureError(f"{path} is damaged: {error}") from error
    spec = JobSpec.model_validate_json(content)
    if spec.base_dir.is_dir() or names_files(spec):
        return spec
    return spec.model_copy(update={"base_dir": path.parents[2]})


def job_dir(root: Path, job_id: str) -> Path:
    """The folder of one job."""
    return root / "jobs" / job_id


def trial_dir(root: Path, number: int) -> Path:
    """The folder that holds a trial's checkpoints."""
    return root / "trials" / f"{number:05d}"


def program_dir(root: Path, number: int) -> Path:
    """The folder of the files of a trial's own program, if it has one. It stays on the machine of the job."""
    return trial_dir(root, number) / "program"


@lru_cache(maxsize=4096)  # looked up after each epoch of each trial
def stop_mark(root: Path, number: int) -> Path:
    """The file that asks a job to end a trial after its present epoch."""
    return trial_dir(root, number) / "stop"
