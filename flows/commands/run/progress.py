"""Progress of a search: one bar per round on a terminal, one line per trial in other output."""

import threading
from collections import defaultdict
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nasflow.config.search import SearchConfig
from nasflow.job.events import Epoch, Event, Evicted, Final
from nasflow.study.records import Attempt
from nasflow.study.study import Study


class SearchProgress:
    """Shows a session's events as progress bars, which count the finished trials and epochs of each round.

    They count what earlier runs of the search have recorded, too, once `follow` was called.
    """

    def __init__(self, config: SearchConfig, console: Console):
        self._config = config
        self._study: Study | None = None
        self._console = console
        self._objective = config.objectives[0]
        self._best: float | None = None
        self._lock = threading.Lock()
        self._rounds: dict[int, TaskID] = {}
        self._seen: dict[int, set[tuple[int, int]]] = defaultdict(set)  # epochs of trials, by round
        self._ended: dict[int, set[int]] = defaultdict(set)  # trials, by round
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("trials · {task.fields[epochs]} epochs{task.fields[best]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "SearchProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def follow(self, study: Study) -> None:
        """Go on from what is on record in a study. Call it before the first event."""
        self._study = study
        for trial in study.leaderboard(1):
            self._best = trial.metrics[self._objective.metric]

    def on_event(self, attempt: Attempt, event: Event) -> None:
        """Show one event. Any thread may call this."""
        with self._lock:
            if attempt.round not in self._rounds:
                self._begin(attempt.round)
            if isinstance(event, Epoch):
                self._seen[attempt.round].add((event.trial, event.epoch))
            elif isinstance(event, Final) and event.trial not in self._ended[attempt.round]:
                self._ended[attempt.round].add(event.trial)
                self._take_final(attempt, event)
            elif isinstance(event, Evicted) and not self._console.is_terminal:
                self._console.print(f"trial {event.trial} failed: {event.error.partition(chr(10))[0]}")
            self._refresh(attempt.round)

    def _take_final(self, attempt: Attempt, event: Final) -> None:
        value = event.metrics.get(self._objective.metric)
        loss = self._objective.to_loss
        if value is not None and (self._best is None or loss(value) < loss(self._best)):
            self._best = value
        if not self._console.is_terminal:
            shown = "no value" if value is None else f"{value:.4f}"
            self._console.print(
                f"round {attempt.round} trial {event.trial}: {self._objective.metric} {shown}, {event.epochs} epochs",
                soft_wrap=True,
            )

    def _begin(self, number: int) -> None:
        """Add the bar of a round."""
        trials = [] if self._study is None else self._study.trials(round=number)
        for trial in trials:
            self._seen[number] |= {(trial.number, epoch) for epoch in range(1, trial.epochs + 1)}
            if trial.status.finished:
                self._ended[number].add(trial.number)
        text = f"round {number + 1} of {self._config.budget.rounds}"
        waiting = sum(not trial.status.finished and trial.replayed_from is not None for trial in trials)  # for no event
        total = len(trials) - waiting or self._config.budget.trials_per_round
        self._rounds[number] = self._bars.add_task(text, total=total, epochs=0, best="")

    def _refresh(self, number: int) -> None:
        best = "" if self._best is None else f" · best {self._objective.metric} {self._best:.4f}"
        ended, seen = len(self._ended[number]), len(self._seen[number])
        self._bars.update(self._rounds[number], completed=ended, epochs=seen, best=best)
