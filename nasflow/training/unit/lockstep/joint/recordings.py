"""The recorded steps of a job's units."""

import logging
import types
from collections import Counter
from collections.abc import Callable, Hashable

from nasflow.training.unit.lockstep.joint.recorded import Recording
from nasflow.training.unit.lockstep.joint.view import NotJointError, Reader

logger = logging.getLogger(__name__)

_MOST = 8  # kept of one key
_MOST_KEYS = 64  # of one step: batches of ever new forms would never be met again


class Recordings:
    """Finds the recording of a step again in another unit or epoch, if the step would read the same there."""

    def __init__(self) -> None:
        self._found: dict[Hashable, list[Recording]] = {}
        self._refused: set[Hashable] = set()
        self._keys: Counter[types.FunctionType] = Counter()

    def find(
        self, step: types.FunctionType, key: Hashable, reader: Reader, learn: Callable[[], Recording]
    ) -> Recording | None:
        """Return a recording; None if the step can't be recorded.

        Args:
            key: equal for steps of the same class with inputs and outputs of the same form.
            reader: of the members' modules.
            learn: records the step; what it raises but NotJointError is why it can't be recorded.
        """
        key = step, key
        if key in self._refused:
            return None
        if key not in self._found:
            if self._keys[step] == _MOST_KEYS:
                return None
            self._keys[step] += 1
        known = self._found.setdefault(key, [])
        for recording in known:
            if reader.signature(step, recording.names) == recording.read:
                return recording
        try:
            recording = learn()
        except NotJointError:
            raise
        except Exception as error:  # of torch, or of the step, which looks at a value
            logger.debug("a step can't be recorded: %s: %s", type(error).__name__, error)
            self._refused.add(key)
            return None
        known.append(recording)
        del known[:-_MOST]  # what it reads may change from epoch to epoch
        return recording
