"""Holding a claimed job while it computes: renew the lease, hear of a cancellation, write progress."""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import structlog
from sqlalchemy import ColumnElement, Engine, Select, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.dml import ReturningUpdate

from app.tables import Job, JobEvent
from worker.claim import Claim
from worker.process import Progress

LOOK_SECONDS = 0.5  # how late a cancellation may be noticed
PROGRESS_SECONDS = 0.2  # numbers within a stage are written no more often than this
FLUSH_SECONDS = JOIN_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Lease:
    """A thread of its own does all the talking to Postgres, so that whoever asks here never waits for the database.

    Every statement is fenced by the attempt. One that matches no row says that the job is somebody else's by now.
    While Postgres does not answer, the lease counts as held until its time is over.
    """

    def __init__(self, engine: Engine, claim: Claim, *, lease_seconds: float, heartbeat_seconds: float) -> None:
        self._engine = engine
        self._claim = claim
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = min(heartbeat_seconds, lease_seconds / 3)  # whatever was configured, in time
        self._renewed_at = claim.claimed_at
        self._taken = False
        self._cancel_requested = False
        self._changed = threading.Condition()
        self._stopping = False
        self._stages: deque[Progress] = deque()  # changes of stage, every one of which is written
        self._latest: Progress | None = None
        self._written: Progress | None = None
        self._written_at = -PROGRESS_SECONDS
        self._thread = threading.Thread(target=self._keep, name=f"lease-{claim.job_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        # One stuck in a dead connection is left behind: its statements are fenced like any other's.
        self._thread.join(JOIN_SECONDS)

    @property
    def lost(self) -> bool:
        """Whether the job must not be computed any further: another attempt holds it, or the lease is over."""
        return self._taken or time.monotonic() >= self._renewed_at + self._lease_seconds

    @property
    def cancel_requested(self) -> bool:
        """Whether a client asked to cancel the job, as of the last look."""
        return self._cancel_requested

    def report(self, progress: Progress) -> None:
        """Take note of progress; within a stage ``done`` never goes back."""
        with self._changed:
            previous = self._latest
            if previous is None or previous.stage != progress.stage:
                self._stages.append(progress)
            elif progress.done < previous.done:
                return
            self._latest = progress
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the last stage is written, but never long for a database that does not answer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._stages or self._taken, FLUSH_SECONDS)

    def _keep(self) -> None:
        while self._wait_for_work():
            asked_at = time.monotonic()
            try:
                self._look(asked_at)
            except SQLAlchemyError as error:
                log.warning("lease_not_renewed", job=str(self._claim.job_id), error=type(error).__name__)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, LOOK_SECONDS)
            if self._taken:
                with self._changed:
                    self._changed.notify_all()
                return

    def _wait_for_work(self) -> bool:
        """Return when there is something to write or it is time to look; False when stopping."""
        look_at = time.monotonic() + min(LOOK_SECONDS, self._heartbeat_seconds)
        with self._changed:
            while not self._stopping and not self._stages:
                due = look_at if self._latest is self._written else min(look_at, self._written_at + PROGRESS_SECONDS)
                remaining = due - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return not self._stopping

    def _look(self, asked_at: float) -> None:
        """One transaction: what there is to write and a renewal, or only a look at the row between renewals."""
        with self._changed:
            stages, latest = list(self._stages), self._latest
        writes = latest is not self._written
        renews = writes or asked_at >= self._renewed_at + self._heartbeat_seconds
        with self._engine.begin() as connection:
            statement = self._renewal(latest if writes else None) if renews else self._glance()
            cancel_requested = connection.execute(statement).scalar_one_or_none()
            if stages and cancel_requested is not None:
                events = [{"job_id": self._claim.job_id, "kind": "stage", "data": {"stage": s.stage}} for s in stages]
                connection.execute(insert(JobEvent), events)
        if cancel_requested is None:
            self._taken = True
            return
        self._cancel_requested = cancel_requested
        if renews:
            self._renewed_at = asked_at
        if writes:
            self._written, self._written_at = latest, asked_at
        with self._changed:
            for _ in stages:
                self._stages.popleft()
            self._changed.notify_all()

    def _renewal(self, progress: Progress | None) -> ReturningUpdate[bool]:
        values: dict[str, Any] = {"lease_expires_at": func.now() + timedelta(seconds=self._lease_seconds)}
        if progress is not None:
            values |= {"stage": progress.stage, "done": progress.done, "total": progress.total}
        return update(Job).where(*held_by(self._claim)).values(values).returning(Job.cancel_requested)

    def _glance(self) -> Select[bool]:
        return select(Job.cancel_requested).where(*held_by(self._claim))


def held_by(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    """The fence: true of the job's row only while this claim holds it."""
    return (
        Job.id == claim.job_id,
        Job.state == "running",
        Job.attempt == claim.attempt,
        Job.worker_id == claim.worker_id,
    )
