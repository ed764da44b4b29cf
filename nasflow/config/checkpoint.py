"""The `checkpoint` section: which checkpoints are kept, and where."""

from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from nasflow.config.objective import Objective
from nasflow.config.values import Section


class CheckpointConfig(Section):
    """Every trial is checkpointed after init, every `every_epochs` epochs, and at the end; the `keep` newest stay."""

    every_epochs: PositiveInt = Field(default=1, description="epochs between two checkpoints of a trial")
    every_minutes: PositiveFloat | None = Field(
        default=None, description="also after an epoch that ends so long after the last checkpoint"
    )
    keep: PositiveInt = Field(default=2, description="newest checkpoints of a trial that stay")
    best: Objective | None = Field(default=None, description="the checkpoint of the epoch that is best by this stays")
    url: str | None = Field(
        default=None,
        description="checkpoints are copied there, too: any storage that fsspec knows, as s3://bucket/folder",
    )

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, url: str | None) -> str | None:
        if url is not None and "://" not in url:
            raise ValueError(f"'{url}' is no URL; give one such as s3://bucket/folder or file:///folder")
        if url is not None and urlsplit(url).password is not None:
            raise ValueError(
                "it has a password in it, which would be recorded; set it in the storage's own settings instead"
            )
        return url
