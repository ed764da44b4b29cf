"""Builds the storage that a config names."""

from pathlib import Path

from nasflow.config.services.storage import SharedFolderConfig, StorageConfig
from nasflow.training_service.cluster.storage.base import RunOptions, Storage
from nasflow.training_service.cluster.storage.folders import SameFolder, SharedFolder
from nasflow.training_service.cluster.storage.object_store import ObjectStore


def make_storage(config: StorageConfig | None, root: Path, options: RunOptions) -> Storage:
    """Return the storage of a study.

    Args:
        config: the `storage` section of the service.
        root: the study's root.
        options: how its jobs run.
    """
    match config:
        case None:
            return SameFolder(root, options)
        case SharedFolderConfig():
            return SharedFolder(root, options, config)
        case _:
            return ObjectStore(config, root, options)
