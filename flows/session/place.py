"""Lets a search go on without its place among the runs of its deployment.

Prefect's server keeps these places, by default in its memory. If a place can't be renewed, as after an outage or a
restart of the server, Prefect's engine cancels the flow. A search that has begun needs no server to train, and the
lease of its study keeps other processes away.
"""

from contextlib import ExitStack

from prefect._internal.concurrency.cancellation import shield

_shields: list[ExitStack] = []


def keep_without_place() -> None:
    """Let Prefect's engine not cancel the flow of this thread, nor what follows the flow, until this process ends.

    A cancellation would wait for the end of the shield, and reach the engine when it records how the flow ended.
    """
    if not _shields:
        _shields.append(ExitStack())
        _shields[0].enter_context(shield())
