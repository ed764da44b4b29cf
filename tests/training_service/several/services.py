"""Makes several services on one root, in any process: `local`, and a second local one that has records of its own."""

from pathlib import Path

from nasflow.config.services.local import LocalServiceConfig
from nasflow.training_service.files.shared_root import RootHere
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.several.service import SeveralServices

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


class Second(LocalService):
    """Has its records and workers in a folder of its own, and all files of jobs and trials in the common root."""

    def __init__(self, root: Path, slots: int = 1):
        own = root / "second"
        own.mkdir(parents=True, exist_ok=True)
        for name in ("jobs", "trials"):
            (root / name).mkdir(exist_ok=True)
            if not (own / name).exists():
                (own / name).symlink_to(root / name)
        super().__init__(LocalServiceConfig(slots=slots), own, runner=SCRIPTED, preload=())
        self._common = root.resolve()

    def fetch(self, path: str) -> Path:
        place = self._common / path
        if not place.exists():
            raise FileNotFoundError(path)
        return place


def local(root: Path, slots: int = 1) -> LocalService:
    return LocalService(LocalServiceConfig(slots=slots), root, runner=SCRIPTED, preload=())


def make(root: Path, slots: int = 1) -> SeveralServices:
    """With two slots, one of each service."""
    services: dict[str, RootHere] = {"local": local(root)}
    if slots == 2:
        services["second"] = Second(root)
    return SeveralServices(services, root)
