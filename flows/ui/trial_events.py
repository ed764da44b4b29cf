"""Prefect events about trials and rounds, for automations and for programs that follow a search.

A recorded transition is sent once, by the process that recorded it. What a killed controller did not send is not sent
later: the study is the record. Prefect is imported with the first event.
"""

from collections.abc import Iterable
from typing import Any

from nasflow.config.search import SearchConfig
from nasflow.job.events import Epoch
from nasflow.json_metrics import json_metrics
from nasflow.report.text import error_headline
from nasflow.study.improvements import Gains
from nasflow.trial import Trial

from .rate_limit import Newest
from .run_page import RunPage

SUBMITTED = "nasflow.trial.submitted"
EPOCH = "nasflow.trial.epoch"
FINAL = "nasflow.trial.final"
FAILED = "nasflow.trial.failed"
BEST = "nasflow.trial.best"
ROUND_ENDED = "nasflow.round.ended"

NEWS_A_SECOND = 2.0
NEWS_AT_ONCE = 20
WITHOUT_GAIN = "nasflow.rounds-without-gain"
"""Label of the resource of ROUND_ENDED, so that an automation can match a number of rounds."""


class TrialEvents:
    """Emits the Prefect events of one study; none outside of a flow run. Thread-safe.

    Args:
        page: page of the flow run that all events are related to.
        gains: the study's gains so far.
    """

    def __init__(self, config: SearchConfig, page: RunPage, gains: Gains):
        self._study = config.name
        self._objective = config.objectives[0].metric
        self._page = page
        self._gains = gains
        self._news = Newest[int, tuple[str, int, int, dict[str, Any]]](NEWS_A_SECOND, NEWS_AT_ONCE)

    def submitted(self, trials: Iterable[Trial]) -> None:
        """Report that trials were recorded, and the outcome of those that already have one."""
        trials = list(trials)
        for trial in trials:
            self._tell_news(SUBMITTED, trial.round, trial.number, replayed_from=trial.replayed_from)
        self.ended(trials)

    def epoch(self, round: int, event: Epoch) -> None:
        """Report that a trial finished an epoch, which is already recorded."""
        self._tell_news(EPOCH, round, event.trial, epoch=event.epoch, metrics=json_metrics(event.metrics))

    def ended(self, trials: Iterable[Trial]) -> None:
        """Report the outcomes of trials; those without an outcome are skipped."""
        trials = [trial for trial in trials if trial.status.finished]
        for trial in trials:
            self._news.drop(trial.number)
            known = {"epoch": trial.epochs, "status": str(trial.status), "replayed_from": trial.replayed_from}
            if trial.status.scored:
                self._tell(FINAL, trial.round, trial.number, **known, **_found(trial))
            else:
                self._tell(FAILED, trial.round, trial.number, **known, error=error_headline(trial.error))
        for trial in self._gains.take(trials):
            value = {"objective": self._objective, "value": trial.metrics[self._objective]}
            self._tell(BEST, trial.round, trial.number, epoch=trial.epochs, **value, **_found(trial))

    def round_ended(self, number: int, **counts: int) -> None:
        """Report the end of a round, with `counts` of its trials."""
        without = self._gains.rounds_without(number)
        self._emit(
            ROUND_ENDED,
            {
                "prefect.resource.id": f"nasflow.round.{self._study}.{number}",
                "prefect.resource.name": f"round {number} of {self._study}",
                WITHOUT_GAIN: str(without),
            },
            {"round": number, **counts, "improved": without == 0, "rounds_without_gain": without},
        )

    def _tell_news(self, event: str, round: int, trial: int, **payload: Any) -> None:
        """Emit an event within the rate limit. Above it, only the newest event of each trial waits."""
        for name, of_round, number, fields in self._news.put(trial, (event, round, trial, payload)):
            self._tell(name, of_round, number, **fields)

    def _tell(self, event: str, round: int, trial: int, **payload: Any) -> None:
        resource = {
            "prefect.resource.id": f"nasflow.trial.{self._study}.{trial}",
            "prefect.resource.name": f"trial {trial} of {self._study}",
        }
        self._emit(event, resource, {"round": round, "trial": trial, **payload})

    def _emit(self, event: str, resource: dict[str, str], payload: dict[str, Any]) -> None:
        run = self._page.run
        if run is None:
            return
        from prefect.events import emit_event  # noqa: PLC0415 - slow

        related = [
            {  # an automation's action takes the first flow run of an event
                "prefect.resource.id": f"prefect.flow-run.{run.id}",
                "prefect.resource.role": "flow-run",
                "prefect.resource.name": run.name,
            },
            {
                "prefect.resource.id": f"nasflow.study.{self._study}",
                "prefect.resource.role": "study",
                "prefect.resource.name": self._study,
            },
        ]
        # In the context of a task run, Prefect would add its related resources, at half as much work again.
        fields = {"study": self._study, **payload}
        self._page.context.copy().run(emit_event, event, resource, related=related, payload=fields)


def _found(trial: Trial) -> dict[str, Any]:
    return {"metrics": json_metrics(trial.metrics), "architecture": dict(trial.architecture)}
