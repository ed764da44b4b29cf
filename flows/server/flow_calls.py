"""Flows that a script or a notebook may call where no server is named.

Prefect would start one that Ctrl-C in the terminal ends with the flow, and that it takes for running ever after. Of
several threads that call a flow first, all but one would use it before it answers.
"""

from typing import Any, ParamSpec, TypeVar

from prefect import Flow
from prefect.context import FlowRunContext

from nasflow.load_target import refuse_in_import

from .own_server import ensure_server

P = ParamSpec("P")
R = TypeVar("R")


class _FlowWithServer(Flow[P, R]):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_in_import(f"{self.fn.__name__}()")
        if FlowRunContext.get() is None:  # the calling flow has a server
            ensure_server()
        return super().__call__(*args, **kwargs)

    def with_options(self, **options: Any) -> Flow[P, R]:
        return with_server(super().with_options(**options))


def with_server(flow: Flow[P, R]) -> Flow[P, R]:
    """Decorate a flow so that calling it starts nasflow's own server, unless Prefect's settings name one."""
    flow.__class__ = _FlowWithServer
    return flow
