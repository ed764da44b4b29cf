"""The trials of a study: proposed, replayed, failed, retried, ranked."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, insert, literal, null, or_, select
from sqlalchemy.orm import Session

from nasflow.errors import StudyError
from nasflow.pareto import pareto_ranks
from nasflow.space.architecture import Architecture
from nasflow.study.base import FINISHED, OF_TRIAL, SCORED, StudyBase, best_first, chunks, now, to_trial, trial_of
from nasflow.study.database.store import EpochRow, RoundRow, TrialRow
from nasflow.study.records import RoundState
from nasflow.system.gc_control import uncollected
from nasflow.trial import STOP_AFTER, Trial, TrialStatus, trial_seed, without_stop

_ROUNDS_AT_ONCE = 10


class TrialLog(StudyBase):
    """The part of a study that stores its trials."""

    def submit_trials(self, round: int, architectures: Sequence[Architecture]) -> list[Trial]:
        """Record the trials of a round and return them. If the round has trials already, return those instead.

        An architecture of an earlier trial is not trained again, because its result would be the same: the new trial
        has `replayed_from` and that trial's outcome, or is SUBMITTED until `settle_replays` finds one.
        """
        with self._write() as session:
            self._round_row(session, round)
            if present := self._select(session, round=round):
                return present
            last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == self._id))
            originals = self._originals(session, {architecture.digest for architecture in architectures})
            values = []
            for number, architecture in enumerate(architectures, 0 if last is None else last + 1):
                original = originals.setdefault(architecture.digest, number)
                values.append(self._new_values(number, round, architecture, None if original == number else original))
            if values:
                session.execute(insert(TrialRow), values)
            rows = session.scalars(self._query(round=round)).all()
            self._settle(session, rows)
            return [to_trial(row) for row in rows]

    def settle_replays(self, round: int | None = None) -> list[Trial]:
        """Copy the outcome of finished originals to waiting replays, of one round or all; return these replays."""
        with self._write() as session:
            waiting = session.scalars(
                self._query(TrialStatus.SUBMITTED, round).where(TrialRow.replayed_from.is_not(None))
            )
            return [to_trial(row) for row in self._settle(session, waiting.all())]

    def fail_trial(self, number: int, error: str, status: TrialStatus = TrialStatus.FAILED) -> Trial:
        """Record that a trial is FAILED (or INVALID) for good. A trial that has finished stays as it is."""
        with self._write() as session:
            row = self._trial_rows(session, [number])[number]
            if not row.status.finished:
                row.status, row.error = status, error
            return to_trial(row)

    def reset_failed(self) -> list[Trial]:
        """Make every FAILED trial SUBMITTED again and return them. Epochs and attempts are kept; replays wait.

        A trial keeps its error until its new outcome. Those that an earlier call made SUBMITTED and that have no
        outcome yet, because their retry was killed, are returned as well.
        """
        ended = select(RoundRow.number).where(RoundRow.study_id == self._id, RoundRow.state != RoundState.RUNNING)
        left = and_(TrialRow.status.not_in(FINISHED), TrialRow.error.is_not(None), TrialRow.round.in_(ended))
        with self._write() as session:
            rows = session.scalars(self._query().where(or_(TrialRow.status == TrialStatus.FAILED, left))).all()
            for row in rows:
                row.status = TrialStatus.SUBMITTED
            return [to_trial(row) for row in rows]

    def trial(self, number: int) -> Trial:
        """Return one trial. Raises StudyError if no trial has this number."""
        with self._read() as session:
            return to_trial(self._trial_rows(session, [number])[number])

    def refuse_ended(self, number: int) -> None:
        """Raise StudyError if no trial has this number, or it has ended, so that nothing can stop it."""
        status = self.trial(number).status
        if status.finished:
            raise StudyError(f"trial {number} of study '{self.name}' is {status}: only one in training can be stopped")

    def stopped_before(self, trial: Trial) -> Trial | None:
        """Return the scored trial that `trial` can go on from: it differs only in that it ended before.

        Of several, it is the one with the most epochs.
        """
        until = trial.architecture.get(STOP_AFTER)
        if until is None:
            return None
        alike = without_stop(trial.architecture)
        with self._read() as session:
            same_seed = self._query(SCORED).where(TrialRow.seed == trial.seed, TrialRow.replayed_from.is_(None))
            found = [to_trial(row) for row in session.scalars(same_seed)]
        earlier = [
            other
            for other in found
            if without_stop(other.architecture) == alike and other.architecture[STOP_AFTER] < until
        ]
        return max(earlier, key=lambda other: other.epochs, default=None)

    def trials_numbered(self, numbers: Iterable[int]) -> list[Trial]:
        """Return these trials, by number. Raises StudyError for a number that does not exist."""
        with self._read() as session:
            return self._in_order(session, sorted(numbers))

    def unfinished(self, numbers: Iterable[int]) -> list[Trial]:
        """Return those of these trials that have not ended, by number."""
        query = self._query([status for status in TrialStatus if not status.finished]).with_only_columns(*OF_TRIAL)
        with self._read() as session:
            return [
                trial_of(columns)
                for chunk in chunks(sorted(numbers))
                for columns in session.execute(query.where(TrialRow.number.in_(chunk)))
            ]

    def trials(
        self,
        status: TrialStatus | Collection[TrialStatus] | None = None,
        round: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Trial]:
        """Return trials by number, at most `limit` after the first `offset`. Waiting replays are SUBMITTED."""
        with self._read() as session:
            return self._select(session, status, round, limit, offset)

    def counts(self) -> dict[TrialStatus, int]:
        """Return the number of trials with each status, zeros included."""
        with self._read() as session:
            found = session.execute(
                select(TrialRow.status, func.count()).where(TrialRow.study_id == self._id).group_by(TrialRow.status)
            )
            return dict.fromkeys(TrialStatus, 0) | dict(found.tuples().all())

    def history(self) -> Iterator[list[Trial]]:
        """Yield the finished trials of every ended round, oldest round first, for `Strategy.resume`.

        Only a few rounds are in memory at a time.
        """
        ended = select(RoundRow.number).where(RoundRow.study_id == self._id, RoundRow.state != RoundState.RUNNING)
        with self._read() as session:
            numbers = session.scalars(ended.order_by(RoundRow.number)).all()
        for some in chunks(numbers, _ROUNDS_AT_ONCE):
            rounds: dict[int, list[Trial]] = {number: [] for number in some}
            unordered = self._query(FINISHED).order_by(None)  # or SQLite looks at all rounds, to have the order
            columns = unordered.where(TrialRow.round.in_(some)).with_only_columns(*OF_TRIAL)
            with self._read() as session, uncollected():
                for found in map(trial_of, session.execute(columns)):
                    rounds[found.round].append(found)
            yield from (sorted(trials, key=attrgetter("number")) for trials in rounds.values())

    def leaderboard(self, limit: int) -> list[Trial]:
        """Return the `limit` best scored trials, without replays.

        One objective: by its value. Several: by Pareto front, and within a front by the first objective. Ties are
        ordered by `parameters`, if logged, and then by number.
        """
        with self._read() as session:
            if len(self.config.objectives) > 1:
                columns = select(TrialRow.number, TrialRow.metrics, TrialRow.parameters)
                found = session.execute(columns.where(*self._scored()))
                return self._in_order(session, self._pareto_order(found.tuples().all(), limit))
            order = (best_first(self.config.objectives[0]), TrialRow.parameters.asc().nulls_last(), TrialRow.number)
            query = select(TrialRow).where(*self._scored()).order_by(*order).limit(limit)
            return [to_trial(row) for row in session.scalars(query)]

    def best_architectures(self, limit: int) -> list[Trial]:
        """Return the best trial of each of the `limit` best architectures, in the order of `leaderboard`.

        Trials that differ only in when they end, as those that asha promotes do, are of one architecture.
        """
        by_seed = select(func.count()).where(*self._scored()).group_by(TrialRow.seed).subquery()  # see `trial_seed`
        with self._read() as session:
            most = session.scalar(select(func.max(by_seed.c[0]))) or 0
        best: dict[Architecture, Trial] = {}
        for trial in self.leaderboard(limit * most):
            best.setdefault(without_stop(trial.architecture), trial)
        return list(best.values())[:limit]

    def front(self) -> list[Trial]:
        """Return the Pareto front of the scored trials, by number: with one objective the best trial.

        Of equal trials the first; replays are left out. Only the metrics of the other trials are read.
        """
        with self._read() as session:
            if len(self.config.objectives) == 1:
                order = (best_first(self.config.objectives[0]), TrialRow.number)
                best = select(TrialRow).where(*self._scored()).order_by(*order).limit(1)
                return [to_trial(row) for row in session.scalars(best)]
            columns = select(TrialRow.metrics, TrialRow.number).where(*self._scored()).order_by(TrialRow.number)
            first: dict[tuple[float, ...], int] = {}
            for metrics, number in session.execute(columns).tuples():
                first.setdefault(self._point(metrics), number)
            ranks = pareto_ranks(list(first), enough=1)
            return self._in_order(session, [n for n, rank in zip(first.values(), ranks, strict=True) if rank == 0])

    def _scored(self) -> tuple[ColumnElement[bool], ...]:
        """Return the conditions for trials that are ranked."""
        return TrialRow.study_id == self._id, TrialRow.replayed_from.is_(None), TrialRow.status.in_(SCORED)

    def _point(self, metrics: dict[str, float]) -> tuple[float, ...]:
        """Return the objectives as losses."""
        return tuple(o.to_loss(metrics[o.metric]) for o in self.config.objectives)

    def _pareto_order(self, rows: Sequence[tuple[int, dict[str, float], float | None]], limit: int) -> list[int]:
        """Return the numbers of the `limit` best of these (number, metrics, parameters)."""
        points = [self._point(metrics) for _, metrics, _ in rows]
        ranked = sorted(
            (rank, point[0], math.inf if parameters is None else parameters, number)
            for rank, point, (number, _, parameters) in zip(pareto_ranks(points, limit), points, rows, strict=True)
        )
        return [number for *_, number in ranked[:limit]]

    def _new_values(
        self, number: int, round: int, architecture: Architecture, replayed_from: int | None
    ) -> dict[str, Any]:
        return {
            "study_id": self._id,
            "number": number,
            "round": round,
            "digest": architecture.digest,
            "architecture": dict(architecture),
            "seed": trial_seed(self.config.seed, architecture),
            "replayed_from": replayed_from,
        }

    def _originals(self, session: Session, digests: Iterable[str]) -> dict[str, int]:
        """Return the numbers of the trials with these architectures that are not replays, by digest."""
        found: dict[str, int] = {}
        for chunk in chunks(sorted(digests)):
            query = select(TrialRow.digest, TrialRow.number).where(
                TrialRow.study_id == self._id, TrialRow.replayed_from.is_(None), TrialRow.digest.in_(chunk)
            )
            found.update(session.execute(query).tuples().all())
        return found

    def _settle(self, session: Session, rows: Sequence[TrialRow]) -> list[TrialRow]:
        """Copy outcomes to those of `rows` that are replays of finished trials, and return these."""
        replays = [(row, row.replayed_from) for row in rows if row.replayed_from is not None]
        originals = self._trial_rows(session, [number for _, number in replays])
        settled = [(row, originals[number]) for row, number in replays if originals[number].status.finished]
        for row, original in settled:
            row.status, row.metrics, row.epochs = original.status, original.metrics, original.epochs
            row.value, row.parameters = original.value, original.parameters
            row.error = (
                None if original.status.scored else f"same architecture as trial {original.number}: {original.error}"
            )
            known = select(EpochRow.epoch).where(EpochRow.trial_id == row.id)
            copied = select(
                literal(row.id),
                EpochRow.epoch,
                EpochRow.metrics,
                literal(0.0),
                null(),
                literal(now(), EpochRow.recorded_at.type),
            ).where(EpochRow.trial_id == original.id, EpochRow.epoch.not_in(known))
            columns = ["trial_id", "epoch", "metrics", "seconds", "attempt_id", "recorded_at"]
            session.execute(insert(EpochRow).from_select(columns, copied))
        return [row for row, _ in settled]

    def _query(
        self, status: TrialStatus | Collection[TrialStatus] | None = None, round: int | None = None
    ) -> Select[tuple[TrialRow]]:
        query = select(TrialRow).where(TrialRow.study_id == self._id).order_by(TrialRow.number)
        if status is not None:
            query = query.where(TrialRow.status.in_([status] if isinstance(status, TrialStatus) else status))
        return query if round is None else query.where(TrialRow.round == round)

    def _select(
        self,
        session: Session,
        status: TrialStatus | Collection[TrialStatus] | None = None,
        round: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Trial]:
        query = self._query(status, round).limit(limit).offset(offset)
        return [trial_of(columns) for columns in session.execute(query.with_only_columns(*OF_TRIAL))]
