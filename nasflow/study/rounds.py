"""The rounds of a study, and the time they took."""

from sqlalchemy import select

from nasflow.study.base import StudyBase, now
from nasflow.study.database.store import RoundRow
from nasflow.study.records import RoundRecord, RoundState


class RoundLog(StudyBase):
    """The part of a study that stores its rounds."""

    def begin_round(self, number: int) -> RoundRecord:
        """Begin a round, resume it after its controller died, or reopen an ended one."""
        with self._write() as session:
            row = session.get(RoundRow, (self._id, number))
            if row is None:
                at = now()
                row = RoundRow(
                    study_id=self._id,
                    number=number,
                    state=RoundState.RUNNING,
                    started_at=at,
                    resumed_at=at,
                    seconds=0.0,
                )
                row.message = ""
                session.add(row)
            else:
                row.state, row.resumed_at, row.ended_at, row.message = RoundState.RUNNING, now(), None, ""
            self._start_clock(row)
            return _to_record(row)

    def end_round(self, number: int, state: RoundState, message: str = "") -> RoundRecord:
        """Record that a round is COMPLETED or FAILED, and why. Repeated, it keeps the time of the first call."""
        if state is RoundState.RUNNING:
            raise ValueError("a round ends as completed or failed")
        with self._write() as session:
            row = self._round_row(session, number)
            if row.state is RoundState.RUNNING:
                row.ended_at = now()
                self._count_time(session)
            row.state, row.message = state, message
            self._stop_clock(session, number)
            return _to_record(row)

    def rounds(self) -> list[RoundRecord]:
        """Return all rounds, by number."""
        with self._read() as session:
            rows = session.scalars(select(RoundRow).where(RoundRow.study_id == self._id).order_by(RoundRow.number))
            return [_to_record(row) for row in rows.all()]

    def seconds_spent(self) -> float:
        """Return the time of all rounds in seconds; a running one counts up to its latest recorded activity."""
        return sum(record.seconds for record in self.rounds())


def _to_record(row: RoundRow) -> RoundRecord:
    return RoundRecord(row.number, row.state, row.started_at, row.ended_at, row.seconds, row.message)
