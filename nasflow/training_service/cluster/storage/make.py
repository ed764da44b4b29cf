"""Builds the storage that a config names."""

from pathlib import Path

from nasflow.config.services.storage import SharedFolderConfig, StorageConfig
from nasflow.errors import ServiceError
from nasflow.training_service.cluster.storage.base import Storage
from nasflow.training_service.cluster.storage.folders import SameFolder, SharedFolder


def make_storage(config: StorageConfig | None, root: Path) -> Storage:
    """Return the storage of a study.

    Args:
        config: the `storage` section of the service.
        root: the study's root.
    """
    match config:
        case None:
            return SameFolder(root)
        case SharedFolderConfig():
            return SharedFolder(root, config)
        case _:
            raise ServiceError(
                "training_service.storage.url: this version knows shared folders only; set local and remote"
            )
