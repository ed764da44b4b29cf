"""The search as Prefect flows, and the command line. The only room that imports Prefect.

Prefect and torch are imported only when `from nasflow.flows import search` is executed, because the command line must
start quickly. The modules are not named like the flows, because an imported module would hide the flow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recover_flow import recover
    from .result import BestTrial, SearchResult
    from .retention_flow import retention
    from .retry_flow import retry_failed
    from .rounds.round_flow import sampling_round
    from .search_flow import search

__all__ = ["BestTrial", "SearchResult", "recover", "retention", "retry_failed", "sampling_round", "search"]

_HOMES = {
    "BestTrial": "result",
    "SearchResult": "result",
    "recover": "recover_flow",
    "retention": "retention_flow",
    "retry_failed": "retry_flow",
    "sampling_round": "rounds.round_flow",
    "search": "search_flow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
