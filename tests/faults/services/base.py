"""What faults of all services share."""

from typing import TypeVar

from tests.faults.scene import Missed, Scene
from tests.faults.service_stage import ServiceStage

S = TypeVar("S", bound=ServiceStage)


def stage_of(scene: Scene, kind: type[S]) -> S:
    """Return the scene's service.

    Raises:
        Missed: the search runs on another.
    """
    if not isinstance(scene.service, kind):
        raise Missed(f"the search does not run on {kind.__name__}")
    return scene.service
