"""One controller per study: a lease in the study's database, which its holder renews and each of its writes checks.

A file lock would protect one machine only. A lease expires, so that a holder does not keep the study forever after its
machine is gone. A holder may be paused past that time without noticing, so each of its transactions first checks that
the lease is still its own (Gray and Cheriton 1989, Leases; a token that fences off late writers: Burrows 2006, The
Chubby lock service). A holder that ran on this machine and is dead loses the lease at once.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from nasflow.errors import StudyError
from nasflow.study.database.store import LeaseRow, Store, TrialRow
from nasflow.system.process_id import ProcessId, process_id, process_table

LEASE_SECONDS = 60.0
_RENEWALS = 6  # in the seconds of a lease
_GIVEN_BACK = ""  # token of a lease that nobody holds; its row keeps the generation

_LOG = logging.getLogger(__name__)


class LeaseLostError(StudyError):
    """Another controller took the study over; this one must not write any more."""


@dataclass(frozen=True)
class Controller:
    """The controller that holds a study.

    Attributes:
        since: when it began, by the database's clock.
        seconds: until its lease ends unless renewed; less than 0 if it has ended.
        dead: whether it ran on this machine and no longer does; False also where that can't be known.
    """

    pid: int
    host: str
    since: datetime
    seconds: float
    dead: bool

    @property
    def free(self) -> bool:
        """Whether the study may be claimed."""
        return self.dead or self.seconds <= 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class Lease:
    """One controller's right to write to one study. `Study.open` claims it; `kept` renews and releases it.

    Args:
        take_over: claim it even from a controller that may be alive, which then can't write any more.
        seconds: until it ends unless renewed.

    Attributes:
        generation: how many controllers have held the study before.
        own_copies: whether the study's checkpoints at a URL are in a folder that no other study can have. Those of a
            study that an earlier version began are in one of the study's name.
    """

    def __init__(self, take_over: bool = False, seconds: float = LEASE_SECONDS):
        self._take_over = take_over
        self._seconds = seconds
        self._token = secrets.token_hex(16)
        self.generation = 0
        self.own_copies = False
        self._on_lost: Callable[[], object] = lambda: None
        self._study: tuple[Store, int, str] | None = None

    def claim(self, store: Store, session: Session, study_id: int, name: str) -> None:
        """Take the lease of a study, in a transaction that may write to it.

        Raises:
            StudyError: another controller holds it.
        """
        holder = holder_of(store, session, study_id)
        if holder is not None and not holder.free and not self._take_over:
            raise StudyError(
                f"another controller runs study '{name}' ({holder}): wait for its end, or end it; if it is dead, it "
                f"loses the study in {holder.seconds:.0f} s, and --take-over takes it at once"
            )
        identity = process_id(os.getpid())
        if identity is None:
            raise RuntimeError("this process is not in its own table of processes")
        before = session.get(LeaseRow, study_id)
        self.generation = 0 if before is None else before.process.get("generation", 0) + 1
        is_new = session.scalar(select(TrialRow.id).where(TrialRow.study_id == study_id).limit(1)) is None
        self.own_copies = is_new or (before is not None and before.process.get("own_copies", False))
        process = {"table": process_table(), "generation": self.generation, "own_copies": self.own_copies}
        now = store.clock(session)
        session.merge(
            LeaseRow(
                study_id=study_id,
                token=self._token,
                host=socket.gethostname(),
                process={**process, **identity.model_dump()},
                since=now,
                ends=now + timedelta(seconds=self._seconds),
            )
        )
        self._study = (store, study_id, name)

    def check(self, session: Session) -> None:
        """Raise LeaseLostError if another controller has taken it. Until a write transaction ends, none can take it."""
        store, study_id, name = self._claimed()
        if session.scalar(select(LeaseRow.token).where(LeaseRow.study_id == study_id)) == self._token:
            return
        self._on_lost()
        taker = holder_of(store, session, study_id)
        raise LeaseLostError(
            f"study '{name}' was taken over by {taker or 'another controller, which has ended since'}: "
            "this one stops and writes nothing more"
        )

    def refuse_lost(self) -> None:
        """Raise LeaseLostError if another controller has taken it."""
        store, _, _ = self._claimed()
        with store.read() as session:
            self.check(session)

    def held(self) -> bool:
        """Whether this controller still holds it, as far as the database can be reached."""
        try:
            self.refuse_lost()
        except LeaseLostError:
            return False
        except StudyError as error:
            _LOG.warning("the store could not be asked for the study's lease: %s", error)
        return True

    @contextmanager
    def kept(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Renew the claimed lease within this block, and release it at the end.

        Args:
            on_lost: called, from any thread, each time another controller is found to hold the lease.
        """
        self._on_lost = on_lost
        ended = threading.Event()
        context = copy_context()  # by which its warnings go to the log of its search
        keeper = threading.Thread(target=context.run, args=(self._keep, ended), name="nasflow-lease", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join()
            self._give_back()

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(self._seconds / _RENEWALS):
            try:
                self._renew()
            except LeaseLostError as error:
                _LOG.error("%s", error)
                return
            except StudyError as error:  # the database may be reachable at the next renewal
                _LOG.warning("the lease of the study could not be renewed: %s", error)
            except Exception:  # without renewals another controller would take the study
                _LOG.exception("the lease of the study could not be renewed")

    def _renew(self) -> None:
        store, study_id, name = self._claimed()
        with store.write(name) as session:
            self.check(session)
            ends = store.clock(session) + timedelta(seconds=self._seconds)
            session.execute(update(LeaseRow).where(LeaseRow.study_id == study_id).values(ends=ends))

    def _give_back(self) -> None:
        store, study_id, name = self._claimed()
        try:
            with store.write(name) as session:
                own = (LeaseRow.study_id == study_id, LeaseRow.token == self._token)
                session.execute(update(LeaseRow).where(*own).values(token=_GIVEN_BACK))
        except StudyError as error:
            _LOG.warning("the lease of study '%s' could not be given back and ends by itself: %s", name, error)

    def _claimed(self) -> tuple[Store, int, str]:
        if self._study is None:
            raise RuntimeError("a lease is claimed before it is used")
        return self._study


def holder_of(store: Store, session: Session, study_id: int) -> Controller | None:
    """Return the controller that holds a study, None if there is none."""
    row = session.get(LeaseRow, study_id, populate_existing=True)
    if row is None or row.token == _GIVEN_BACK:
        return None
    process = ProcessId(pid=row.process["pid"], started=row.process["started"])
    return Controller(
        pid=process.pid,
        host=row.host,
        since=row.since,
        seconds=(row.ends - store.clock(session)).total_seconds(),
        dead=row.process["table"] == process_table() and not process.alive(),
    )
