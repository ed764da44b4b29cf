"""The `checkpoint` section: which checkpoints are kept, and where."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from nasflow.config.durations import Duration
from nasflow.config.objective import Objective
from nasflow.config.secret.secret_url import SecretUrl, check_folder_url
from nasflow.config.secret.secrets import SecretLocation
from nasflow.config.values import Section


class CheckpointConfig(Section):
    """Every trial is checkpointed after init, every `every_epochs` epochs, and at the end; the `keep` newest stay."""

    every_epochs: PositiveInt | Literal["auto"] = Field(
        default=1,
        description="epochs between two checkpoints of a trial; auto: as many as lose the least time, by what "
        "checkpoints cost and how often jobs fail",
    )
    between_failures: Duration = Field(
        default=86400.0, description="mean time between two failures of a job, of which auto makes use"
    )
    every_minutes: PositiveFloat | None = Field(
        default=None, description="also after an epoch that ends so long after the last checkpoint"
    )
    keep: PositiveInt = Field(default=2, description="newest checkpoints of a trial that stay")
    best: Objective | None = Field(
        default=None, description="the checkpoint of the epoch that is best by this stays, too; exports take the last"
    )
    on_preempt: bool = Field(
        default=False,
        title="Save when preempted",
        description="a job that is asked to end (SIGTERM), as on a node that is taken back, saves the running epoch at "
        "its next batch, and goes on there",
    )
    url: SecretLocation | None = Field(
        default=None,
        description="checkpoints are copied there, too: any storage that fsspec knows, as s3://bucket/folder; one with "
        "a password may be {env: NAME} or {prefect_block: NAME}",
    )

    @field_validator("url")
    @classmethod
    def _of_a_folder(cls, url: SecretLocation | None) -> SecretLocation | None:
        if isinstance(url, SecretUrl):
            check_folder_url(url.get_secret_value())
        return url
