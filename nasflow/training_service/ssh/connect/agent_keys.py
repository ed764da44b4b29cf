"""The keys of a running ssh-agent, which may hang: paramiko waits for its answer without a limit."""

import logging
import threading
from functools import cache

from paramiko import Agent

_LOG = logging.getLogger(__name__)
_hung: list[threading.Thread] = []  # those that still wait for an answer: more would only wait with them


def ask_agent(timeout: float) -> Agent | None:
    """Return the running ssh-agent; None if it does not answer in time, or not as an ssh-agent does."""
    _hung[:] = [thread for thread in _hung if thread.is_alive()]
    if _hung:
        return None
    answers: list[Agent | Exception] = []

    def ask() -> None:
        try:
            answers.append(Agent())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="ssh-agent", daemon=True)
    thread.start()
    thread.join(timeout)
    answer = answers[0] if answers else f"no answer within {timeout:g} s"
    if isinstance(answer, Agent):
        return answer
    if thread.is_alive():
        _hung.append(thread)
    _warn(str(answer))
    return None


@cache
def _warn(why: str) -> None:
    """Log, once, that the agent's keys are not offered."""
    _LOG.warning("the ssh-agent is of no use (%s): its keys are not offered; restart it, or set 'agent: false'", why)
