"""Taking the next job of a model: one statement, so that there is nothing to interleave with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg.errors import LockNotAvailable
from sqlalchemy import exists, func, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, aliased, sessionmaker
from sqlalchemy.sql.dml import ReturningUpdate

from app.edits import outcomes
from app.tables import Job, Model

LOCK_TIMEOUT = "1s"  # a lease begins with its claim: one that waited for long would be over before its job starts


@dataclass(frozen=True)
class Claim:
    """The right to run a job, for as long as the lease is renewed. ``attempt`` fences every write."""

    job: Job
    worker_id: str
    claimed_at: float  # monotonic, before the statement: the lease ends no earlier than this plus its length

    @property
    def job_id(self) -> UUID:
        return self.job.id

    @property
    def attempt(self) -> int:
        return self.job.attempt


def claim_next(
    sessions: sessionmaker[Session], *, rung_for: UUID, worker_id: str, lease_seconds: float
) -> Claim | None:
    """Claim the head of the line of ``rung_for``'s model, which may be another job than the one rung for.

    Returns:
        None when the line is empty, a job of the model runs, or the line stays locked; the next ring tries again.
    """
    claimed_at = time.monotonic()
    try:
        with sessions.begin() as session:
            session.execute(select(func.set_config("lock_timeout", LOCK_TIMEOUT, True)))
            job = session.scalars(_statement(rung_for, worker_id, lease_seconds)).one_or_none()
            if job is None:
                return None
            outcomes.start(session, job)
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        return None
    except IntegrityError as error:
        # uq_jobs_model_id_running: another worker was faster in a way that the statement could not see.
        if "uq_jobs_model_id_running" not in str(error.orig):
            raise
        return None
    return Claim(job, worker_id, claimed_at)


def _statement(rung_for: UUID, worker_id: str, lease_seconds: float) -> ReturningUpdate[Job]:
    """The row lock on the model makes claims of one model wait for each other, and for the publication that moves
    ``latest_version``: a locked row is read again in its newest state, so the base version bound here is current.
    SKIP LOCKED on the jobs instead would pass over a head that another claim is about to give back: out of order.
    """
    rung, running = aliased(Job), aliased(Job)
    model = (
        select(Model.id, Model.latest_version)
        .where(Model.id == select(rung.model_id).where(rung.id == rung_for).scalar_subquery())
        .with_for_update(key_share=True)
        .cte("model")
    )
    head = (
        select(Job.id)
        .join(model, Job.model_id == model.c.id)
        .where(Job.state == "queued", ~exists().where(running.model_id == model.c.id, running.state == "running"))
        .order_by(Job.priority.desc(), Job.seq)
        .limit(1)
        .with_for_update(of=Job)
        .cte("head")
    )
    return (
        update(Job)
        .where(Job.id == head.c.id, Job.state == "queued", model.c.id == Job.model_id)
        .values(
            state="running",
            attempt=Job.attempt + 1,
            worker_id=worker_id,
            lease_expires_at=func.now() + timedelta(seconds=lease_seconds),
            base_version=model.c.latest_version,
            started_at=func.now(),
            stage=None,
            done=0,
            total=0,
        )
        .returning(Job)
        .execution_options(synchronize_session=False)
    )
