"""The flow runs of searches on the Prefect server in use.

A run is recognized by the study's name in its parameters, and a run of a recurring search by the study's record. Once a
run holds its study, it also has a tag of that study, which a study of the same name in another store does not have.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Crashed, Scheduled

from nasflow.config.search import SearchConfig
from nasflow.recurring import runs_of_study
from nasflow.study.study import Study

from ..ui.run_page import STUDY_TAG, study_tag
from .judge import Run

_FLOWS = ["nas-search"]
_OPEN = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]
_ENDED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]
_SOON = timedelta(minutes=10)
_PAGE = 200  # the most that Prefect gives at once


class SearchRuns:
    """Finds and ends the flow runs of one search.

    Args:
        client: client of the server.
        config: config of the search.

    Raises:
        StudyError: its study is gone, or the store can't be used.
    """

    def __init__(self, client: SyncPrefectClient, config: SearchConfig):
        self._client = client
        self._config = config
        with closing(Study.load(config.store, config.name)) as study:
            self._tag = study_tag(config.name, study.created_at)
        self._claimed = [UUID(run) for run in runs_of_study(config.store, config.name)]

    def newest(self, since: datetime | None) -> Run | None:
        """Return the run that best shows the state of the search: an open one, or else the last one that ended.

        Args:
            since: ignore runs that ended before this, because a later controller has taken the study.
        """
        soon = datetime.now(UTC) + _SOON
        for run in self._open():
            due = run.next_scheduled_start_time
            if run.state_type is not StateType.SCHEDULED or (due is not None and due < soon):
                return _to_run(run)
        named = FlowRunFilter(name=FlowRunFilterName(any_=[self._config.name]), state=_states(_ENDED))
        ended = [*self._ended(named)]
        if self._claimed:
            ended += self._ended(FlowRunFilter(id=FlowRunFilterId(any_=self._claimed[:_PAGE]), state=_states(_ENDED)))
        of_search = [run for run in ended if self._is_of_search(run)]
        newest = max(of_search, key=lambda run: _state(run).timestamp, default=None)
        if newest is None or (since is not None and _state(newest).timestamp < since):
            return None
        return _to_run(newest)

    def bury(self, message: str) -> None:
        """Set the search's pending and running runs, which no process runs, to CRASHED, with their rounds."""
        dead = [run for run in self._open() if run.state_type in (StateType.PENDING, StateType.RUNNING)]
        rounds = FlowRunFilter(
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run.id for run in dead]), state=_states(_OPEN)
        )
        children = self._client.read_flow_runs(flow_run_filter=rounds, limit=_PAGE) if dead else []
        for run in [*children, *dead]:
            self._client.set_flow_run_state(run.id, Crashed(message=message), force=True)

    def hand_over(self, run: UUID) -> None:
        """Let a worker of its deployment continue a run."""
        self._client.set_flow_run_state(run, Scheduled(message="recovered by nasflow"), force=True)

    def _ended(self, which: FlowRunFilter) -> Sequence[FlowRun]:
        return self._client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=_FLOWS)),
            flow_run_filter=which,
            sort=FlowRunSort.END_TIME_DESC,
            limit=_PAGE,
        )

    def _open(self) -> Iterator[FlowRun]:
        read = 0
        while True:
            runs = self._client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=_FLOWS)),
                flow_run_filter=FlowRunFilter(state=_states(_OPEN)),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=_PAGE,
                offset=read,
            )
            yield from (run for run in runs if self._is_of_search(run))
            read += len(runs)
            if len(runs) < _PAGE:
                return

    def _is_of_search(self, run: FlowRun) -> bool:
        if run.id in self._claimed:
            return True
        studies = [tag for tag in run.tags if tag.startswith(STUDY_TAG)]
        if studies and self._tag not in studies:
            return False
        config = run.parameters.get("config")
        if not isinstance(config, dict) or config.get("name") != self._config.name:
            return False
        recurring = config.get("recurring")
        if run.deployment_id is not None and recurring is not None and recurring.get("study") != "continue":
            return False  # it has, or will have, its own dated study
        return str(config.get("work_dir", self._config.work_dir)) == str(self._config.work_dir)


def _to_run(run: FlowRun) -> Run:
    state = _state(run)
    return Run(
        type=state.type.value,
        name=state.name or "",
        at=state.timestamp,
        id=run.id,
        due=run.next_scheduled_start_time,
        deployed=run.deployment_id is not None,
    )


def _state(run: FlowRun) -> State:
    if run.state is None:
        raise RuntimeError(f"flow run {run.id} has no state")
    return run.state


def _states(types: list[StateType]) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
