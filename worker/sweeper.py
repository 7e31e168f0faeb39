"""Looking for what nobody rang for: jobs whose worker died, and heads of lines that no ring waits for."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import structlog
from sqlalchemy import exists, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased, sessionmaker

from app.artifacts import ArtifactStore
from app.queueing import Doorbell
from app.tables import Job
from worker.logs import log_unexpected
from worker.release import give_up_dead

ADVISORY_LOCK = 0x6D6F64656C6D656E  # "modelmen": any number that no one else locks
BATCH = 100
SETTLE_SECONDS = 0.05  # past the moment a lease ends
AGAIN_SECONDS = 0.5

log = structlog.get_logger(__name__)


class Sweeper:
    """Of many sweepers one at a time acts.

    The lock lives as long as one sweep's transaction: a sweeper that is lost from the network holds up the others no
    longer than that.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        store: ArtifactStore,
        doorbell: Doorbell,
        *,
        period: float,
        max_deaths: int,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._doorbell = doorbell
        self._period = period
        self._max_deaths = max_deaths

    def sweep(self) -> float:
        """One sweep. Returns seconds until the next is worth while: the period, or the time to the next lease's end."""
        with self._sessions.begin() as session:
            if not session.scalar(select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))):
                return self._period
            self._expire_leases(session)
            waiting = _forgotten_heads(session)
            next_end = session.scalar(
                select(func.extract("epoch", func.min(Job.lease_expires_at) - func.clock_timestamp())).where(
                    Job.state == "running"
                )
            )
        for job_id in waiting:
            self._doorbell.ring(job_id)
        if next_end is None:
            return self._period
        # One that has ended already was locked, or ended while we looked.
        return min(self._period, float(next_end) + SETTLE_SECONDS if next_end > 0 else AGAIN_SECONDS)

    def _expire_leases(self, session: Session) -> None:
        expired = (
            select(Job)
            .where(Job.state == "running", Job.lease_expires_at < func.now())
            .order_by(Job.seq)
            .limit(BATCH)
            .with_for_update(skip_locked=True, key_share=True)
        )
        for job in session.scalars(expired).all():
            log.warning("lease_expired", job=str(job.id), attempt=job.attempt, worker=job.worker_id)
            try:
                with session.begin_nested():
                    give_up_dead(session, self._store, job, cause="lease_expired", max_deaths=self._max_deaths)
            except DBAPIError as error:  # one that cannot be given up must not keep the others
                log_unexpected("lease_not_given_up", error, job=str(job.id))


def _forgotten_heads(session: Session) -> Sequence[UUID]:
    """The head of each line without a running job: either a ring for it still waits, or none will come."""
    running = aliased(Job)
    place = func.row_number().over(partition_by=Job.model_id, order_by=(Job.priority.desc(), Job.seq))
    resting = (
        select(Job.id, Job.seq, place.label("place"))
        .where(Job.state == "queued", ~exists().where(running.model_id == Job.model_id, running.state == "running"))
        .subquery()
    )
    return session.scalars(select(resting.c.id).where(resting.c.place == 1).order_by(resting.c.seq)).all()
