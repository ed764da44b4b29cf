"""The attempts of a study: which job trained which trials, and its results."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from nasflow.errors import StudyError
from nasflow.json_metrics import finite_metrics, json_metrics
from nasflow.study.base import StudyBase, chunks, now
from nasflow.study.database.store import AttemptRow, EpochRow, MemberRow, TrialRow
from nasflow.study.records import Attempt, AttemptKind, AttemptState, Ending, EpochRecord, FinalRecord
from nasflow.trial import FailureKind, TrialStatus

_LOG = logging.getLogger(__name__)
_TIMES = ("started_at", "ended_at")  # fields of an Ending


class AttemptLog(StudyBase):
    """The part of a study that stores attempts, their jobs, and metrics by epoch."""

    def plan_batches(self, round: int, groups: Sequence[Sequence[int]]) -> list[Attempt]:
        """Record which trials of a round train together. A round that has batches keeps those, whatever `groups` is."""
        with self._write() as session:
            self._round_row(session, round)
            if present := self._attempts(session, round=round, kind=AttemptKind.BATCH):
                return present
            for number, group in enumerate(groups):
                self._new_attempt(session, round, AttemptKind.BATCH, number, group)
            return self._attempts(session, round=round, kind=AttemptKind.BATCH)

    def attempt(self, id: int) -> Attempt:
        """Return one attempt as recorded. Raises StudyError if no attempt has this id."""
        with self._read() as session:
            row = self._attempt_row(session, id)
            return _to_record(row, self._member_numbers(session, [id])[id])

    def batches(self, round: int) -> list[Attempt]:
        """Return the batches of a round, by number."""
        with self._read() as session:
            return self._attempts(session, round=round, kind=AttemptKind.BATCH)

    def new_attempt(self, trial_number: int, kind: AttemptKind = AttemptKind.ALONE) -> Attempt:
        """Record a new attempt at one trial, or return the one that a controller left unfinished."""
        with self._write() as session:
            round = self._trial_rows(session, [trial_number])[trial_number].round
            attempts = self._attempts(session, range(trial_number, trial_number + 1))
            alike = [attempt for attempt in attempts if attempt.kind is kind]
            if unfinished := [attempt for attempt in alike if not attempt.state.finished]:
                return unfinished[0]
            others = (AttemptRow.study_id == self._id, AttemptRow.round == round, AttemptRow.kind == kind)
            last = session.scalar(select(func.max(AttemptRow.number)).where(*others))
            number = 0 if last is None else last + 1
            row = self._new_attempt(session, round, kind, number, [trial_number])
            return _to_record(row, [trial_number])

    def start_attempt(
        self, id: int, job_id: str, handle: Mapping[str, Any] | None = None, *, at: datetime | None = None
    ) -> Attempt:
        """Record that an attempt's job was submitted, at that time or else now; its unfinished members are RUNNING.

        Repeated on a running attempt it only records the new handle. An attempt that had failed or was cancelled starts
        again, which `restarts` counts; one that succeeded is a StudyError.
        """
        with self._write() as session:
            row = self._attempt_row(session, id)
            if row.state is AttemptState.SUCCEEDED:
                raise StudyError(f"study '{self.name}': attempt {id} has succeeded and can't start again")
            row.restarts += row.state.finished
            if row.state is not AttemptState.RUNNING:
                row.started_at = at or now()
            row.state, row.ended_at, row.failure, row.error = AttemptState.RUNNING, None, None, None
            row.job_id, row.handle, row.slot = job_id, None if handle is None else dict(handle), None
            members = self._members(session, id)
            for trial in members:
                if not trial.status.finished:
                    trial.status = TrialStatus.RUNNING
            self._count_time(session)
            return _to_record(row, [trial.number for trial in members])

    def record_epochs(self, rows: Sequence[EpochRecord]) -> None:
        """Record metrics by epoch. An epoch on record keeps its first numbers; others are logged and dropped."""
        with self._write() as session:
            self._add_epochs(session, rows)
            self._count_time(session)

    def record_outcome(
        self,
        attempt_id: int,
        state: AttemptState,
        finals: Sequence[FinalRecord] = (),
        failures: Mapping[int, str] | None = None,
        *,
        failure: FailureKind | None = None,
        error: str | None = None,
        slot: str | None = None,
        evidence: Mapping[str, Any] | None = None,
        places: int | None = None,
    ) -> Attempt:
        """Record, in one transaction, what became of a job. An attempt that has ended stays as it is.

        Members with a final are TRAINED or STOPPED_EARLY, or FAILED if an objective is missing or not finite there.
        Those in `failures` are SUBMITTED again and keep their error text; `fail_trial` gives them up. The others are
        SUBMITTED again. Members that had finished before stay as they are; a test adds metrics to theirs, but
        changes no objective.

        Args:
            attempt_id: `Attempt.id`.
            state: SUCCEEDED, FAILED or CANCELLED.
            finals: of the members that ended well.
            failures: error texts by trial number.
            failure: what caused a failed attempt.
            error: why the job as a whole failed.
            slot: where it ran.
            evidence: what is known about the job's end, as JSON.
            places: how many members may train at a time when it is started again; None leaves that as it is.
        """
        if not state.finished:
            raise ValueError(f"an outcome is not '{state}'")
        failures = failures or {}
        with self._write() as session:
            row = self._attempt_row(session, attempt_id)
            members = {trial.number: trial for trial in self._members(session, attempt_id)}
            strangers = {final.trial for final in finals} | failures.keys() - members.keys()
            if strangers := strangers - members.keys():
                raise ValueError(f"trials {sorted(strangers)} are not members of attempt {attempt_id}")
            if not row.state.finished:
                if row.kind is AttemptKind.TEST:
                    objectives = {objective.metric for objective in self.config.objectives}
                    for final in finals:
                        trial, found = members[final.trial], finite_metrics(final.metrics)
                        found = {name: value for name, value in found.items() if name not in objectives}
                        trial.metrics = {**(trial.metrics or {}), **found}
                else:
                    self._end_members(members, finals, failures)
                row.state, row.failure, row.error, row.slot, row.ended_at = state, failure, error, slot, now()
                if state is not AttemptState.SUCCEEDED:
                    found = dict(evidence or {})
                    ending = Ending(
                        row.job_id, failure, row.error, found, places, row.slot, row.started_at, row.ended_at
                    )
                    row.endings = [*(row.endings or []), _to_json(ending)]
                self._count_time(session)
            return _to_record(row, list(members))

    def attempts(
        self,
        trial: int | None = None,
        round: int | None = None,
        trials: range | None = None,
        kind: AttemptKind | None = None,
    ) -> list[Attempt]:
        """Return the attempts of a trial, of a round, of any of some trials, or all, in the order of their planning.

        Args:
            kind: of the attempts that are returned; None for all kinds.
        """
        with self._read() as session:
            return self._attempts(session, range(trial, trial + 1) if trial is not None else trials, round, kind)

    def troubled_attempts(self, limit: int) -> list[Attempt]:
        """Return the newest attempts with failed or cancelled jobs, in the order in which they were planned."""
        with self._read() as session:
            query = select(AttemptRow.id).where(AttemptRow.study_id == self._id, AttemptRow.endings.is_not(None))
            ids = session.scalars(query.order_by(AttemptRow.id.desc()).limit(limit)).all()
            rows = session.scalars(select(AttemptRow).where(AttemptRow.id.in_(ids)).order_by(AttemptRow.id)).all()
            members = self._member_numbers(session, ids)
            return [_to_record(row, members[row.id]) for row in rows]

    def epochs(self, numbers: Iterable[int]) -> dict[int, list[EpochRecord]]:
        """Return the metrics by epoch of these trials; a trial without any has an empty list."""
        found: dict[int, list[EpochRecord]] = {number: [] for number in numbers}
        with self._read() as session:
            for chunk in chunks(found):
                rows = session.execute(
                    select(TrialRow.number, EpochRow)
                    .join(EpochRow, EpochRow.trial_id == TrialRow.id)
                    .where(TrialRow.study_id == self._id, TrialRow.number.in_(chunk))
                    .order_by(TrialRow.number, EpochRow.epoch)
                )
                for number, row in rows.tuples():
                    found[number].append(EpochRecord(number, row.epoch, row.metrics, row.seconds, row.attempt_id))
        return found

    def _new_attempt(
        self, session: Session, round: int, kind: AttemptKind, number: int, members: Sequence[int]
    ) -> AttemptRow:
        trials = self._trial_rows(session, members)
        row = AttemptRow(
            study_id=self._id, round=round, kind=kind, number=number, state=AttemptState.PLANNED, restarts=0
        )
        session.add(row)
        session.flush()
        session.add_all(
            MemberRow(attempt_id=row.id, trial_id=trials[trial].id, position=position)
            for position, trial in enumerate(members)
        )
        session.flush()
        return row

    def _attempt_row(self, session: Session, id: int) -> AttemptRow:
        row = session.get(AttemptRow, id)
        if row is None or row.study_id != self._id:
            raise StudyError(f"study '{self.name}' has no attempt {id}")
        return row

    def _members(self, session: Session, id: int) -> list[TrialRow]:
        """Return the trials of an attempt, in the order of its job."""
        found = select(TrialRow).join(MemberRow, MemberRow.trial_id == TrialRow.id).where(MemberRow.attempt_id == id)
        return [*session.scalars(found.order_by(MemberRow.position))]

    def _member_numbers(self, session: Session, ids: Sequence[int]) -> dict[int, list[int]]:
        """Return the numbers of the trials of these attempts, in the order of their jobs."""
        members: dict[int, list[int]] = {id: [] for id in ids}
        for chunk in chunks(ids):
            rows = session.execute(
                select(MemberRow.attempt_id, TrialRow.number)
                .join(TrialRow, TrialRow.id == MemberRow.trial_id)
                .where(MemberRow.attempt_id.in_(chunk))
                .order_by(MemberRow.attempt_id, MemberRow.position)
            )
            for id, number in rows.tuples():
                members[id].append(number)
        return members

    def _attempts(
        self, session: Session, trials: range | None = None, round: int | None = None, kind: AttemptKind | None = None
    ) -> list[Attempt]:
        query = select(AttemptRow).where(AttemptRow.study_id == self._id).order_by(AttemptRow.id)
        if trials is not None:
            of_trials = select(MemberRow.attempt_id).join(TrialRow, TrialRow.id == MemberRow.trial_id)
            numbered = (TrialRow.number >= trials.start, TrialRow.number < trials.stop)
            query = query.where(AttemptRow.id.in_(of_trials.where(TrialRow.study_id == self._id, *numbered)))
        if round is not None:
            query = query.where(AttemptRow.round == round)
        if kind is not None:
            query = query.where(AttemptRow.kind == kind)
        rows = session.scalars(query).all()
        members = self._member_numbers(session, [row.id for row in rows])
        return [_to_record(row, members[row.id]) for row in rows]

    def _add_epochs(self, session: Session, records: Sequence[EpochRecord]) -> None:
        trials = self._trial_rows(session, [record.trial for record in records])
        by_id = {trial.id: trial for trial in trials.values()}
        known: dict[tuple[int, int], Mapping[str, float | None]] = {}
        epochs = [record.epoch for record in records]
        for chunk in chunks(by_id):
            query = select(EpochRow.trial_id, EpochRow.epoch, EpochRow.metrics).where(
                EpochRow.trial_id.in_(chunk), EpochRow.epoch.between(min(epochs), max(epochs))
            )
            known |= {(trial, epoch): metrics for trial, epoch, metrics in session.execute(query).tuples()}
        for record in records:
            trial = trials[record.trial]
            metrics = json_metrics(record.metrics)
            first = known.setdefault((trial.id, record.epoch), metrics)
            if first is metrics:
                session.add(
                    EpochRow(
                        trial_id=trial.id,
                        epoch=record.epoch,
                        metrics=metrics,
                        seconds=record.seconds,
                        attempt_id=record.attempt_id,
                        recorded_at=now(),
                    )
                )
                trial.epochs = max(trial.epochs, record.epoch)
            elif first != metrics:
                _LOG.warning(
                    "study '%s': trial %d, epoch %d has %s on record; %s is not recorded",
                    self.name, record.trial, record.epoch, first, metrics,
                )  # fmt: skip

    def _end_members(
        self, members: Mapping[int, TrialRow], finals: Sequence[FinalRecord], failures: Mapping[int, str]
    ) -> None:
        by_trial = {final.trial: final for final in finals}
        for number, trial in members.items():
            if trial.status.finished:
                continue
            if number in by_trial:
                self._score(trial, by_trial[number])
            else:
                trial.status = TrialStatus.SUBMITTED
                trial.error = failures.get(number, trial.error)

    def _score(self, trial: TrialRow, final: FinalRecord) -> None:
        metrics = finite_metrics(final.metrics)
        trial.epochs = max(trial.epochs, final.epochs)
        missing = [objective.metric for objective in self.config.objectives if objective.metric not in metrics]
        if missing:
            trial.status = TrialStatus.FAILED
            trial.error = (
                f"the objective '{missing[0]}' is missing from the final metrics, or is not finite; "
                f"finite ones: {', '.join(sorted(metrics)) or 'none'}"
            )
            return
        trial.status = TrialStatus.STOPPED_EARLY if final.stopped_early else TrialStatus.TRAINED
        trial.metrics, trial.error = metrics, None
        trial.value, trial.parameters = metrics[self.config.objectives[0].metric], metrics.get("parameters")


def _to_record(row: AttemptRow, members: Sequence[int]) -> Attempt:
    return Attempt(
        id=row.id,
        round=row.round,
        kind=row.kind,
        number=row.number,
        members=tuple(members),
        state=row.state,
        failure=row.failure,
        error=row.error,
        job_id=row.job_id,
        handle=row.handle,
        slot=row.slot,
        restarts=row.restarts,
        started_at=row.started_at,
        ended_at=row.ended_at,
        endings=tuple(_to_ending(ending) for ending in row.endings or []),
    )


def _to_json(ending: Ending) -> dict[str, Any]:
    values = asdict(ending)
    return values | {key: values[key] and values[key].isoformat() for key in _TIMES}


def _to_ending(values: Mapping[str, Any]) -> Ending:
    failure = values["failure"]
    times = {key: datetime.fromisoformat(text) for key in _TIMES if (text := values.get(key))}
    return Ending(**{**values, **times, "failure": failure and FailureKind(failure)})
