"""A trial that goes on where another one ended begins with that one's checkpoint."""

import logging
from pathlib import Path
from typing import Any

from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import CheckpointError, InfrastructureError

logger = logging.getLogger(__name__)


def carry_over(ended: Path, folder: Path, generation: int) -> None:
    """Write the last state of an ended trial as the first checkpoint of another, unless that has one.

    Without an undamaged checkpoint, the trial trains from the start, to the same results.

    Args:
        ended: the folder of the ended trial.
        folder: of the trial that goes on.
        generation: of the controller.

    Raises:
        InfrastructureError: the checkpoints of the ended trial can't be read at present.
        NewerCheckpointError: a newer nasflow has written them.
    """
    store = CheckpointStore(folder, generation=generation)
    if store.newest() is not None:
        return
    try:
        state = CheckpointStore(ended).read_newest()
    except CheckpointError as error:
        logger.warning("a trial trains from the start, because %s", error)
        return
    except (OSError, MemoryError) as error:
        raise InfrastructureError(f"the checkpoints in {ended} can't be read at present: {error}") from error
    if state is not None:
        store.save(state["epoch"], _going_on(state))


def _going_on(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a trial that trains on; so do its members, if it has several."""
    parts = {"repeats": [_going_on(part) for part in state["repeats"]]} if "repeats" in state else {}
    return {**state, "finished": state["stopped_early"], **parts}
