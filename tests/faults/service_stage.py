"""A training service under faults."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_GONE_WITHIN = 90.0  # seconds


class ServiceStage(ABC):
    """The servers of a training service, for the searches of a campaign.

    Attributes:
        section: `training_service` of the searches.
        environment: environment variables that they need for it.
    """

    section: Mapping[str, Any]
    environment: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Return the names of what searches have on the service at this moment."""

    def left(self) -> list[str]:
        """Return what is still there after the time in which a search that has ended must have removed it."""
        deadline = time.monotonic() + _GONE_WITHIN
        while (found := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found
