"""Builds the storage that a config names."""

from pathlib import Path

from nasflow.config.services.storage import SharedFolderConfig, StorageConfig
from nasflow.training_service.cluster.storage.base import Storage
from nasflow.training_service.cluster.storage.folders import SameFolder, SharedFolder
from nasflow.training_service.cluster.storage.object_store import ObjectStore


def make_storage(config: StorageConfig | None, root: Path, records: Path) -> Storage:
    """Return the storage of a study.

    Args:
        config: the `storage` section of the service.
        root: the study's root.
        records: the folder in it with the records of the service.
    """
    match config:
        case None:
            return SameFolder(root)
        case SharedFolderConfig():
            return SharedFolder(root, config)
        case _:
            return ObjectStore(config, root, records)
