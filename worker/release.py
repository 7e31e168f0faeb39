"""Giving up a running job without an end: back to its place in the line, unless it died too often."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore
from app.edits import outcomes
from app.edits.states import JobState, require_transition
from app.tables import Job, JobEvent

DIED_REPEATEDLY = "worker_died_repeatedly"


def hand_back(session: Session, store: ArtifactStore, job: Job) -> bool:
    """Return a job, locked and held by the caller, because the worker stops; that is no fault of the job's.

    As for every end, ``attempt`` has counted, so that nothing written for it later can match.
    """
    return _release(session, store, job, "worker_stopped")


def give_up_dead(session: Session, store: ArtifactStore, job: Job, *, cause: str, max_deaths: int) -> bool:
    """Return a locked job whose worker or computation died, or fail it at ``max_deaths``.

    Args:
        cause: ``lease_expired`` or ``computation_died``, for the job's events.

    Returns:
        Whether the job was still running.
    """
    job.deaths += 1
    session.flush()
    if job.deaths >= max_deaths and not job.cancel_requested:
        detail = f"The computation or its worker died {job.deaths} times."
        return outcomes.fail(session, store, job.id, job.attempt, code=DIED_REPEATEDLY, detail=detail)
    return _release(session, store, job, cause)


def lock_held(session: Session, job: Job) -> Job | None:
    """The newest row of a job that this attempt holds, locked; None when it holds it no more."""
    return session.scalars(
        select(Job)
        .where(
            Job.id == job.id,
            Job.attempt == job.attempt,
            Job.worker_id == job.worker_id,
            Job.state == JobState.RUNNING.value,
        )
        .with_for_update(key_share=True)
    ).one_or_none()


def _release(session: Session, store: ArtifactStore, job: Job, cause: str) -> bool:
    if job.cancel_requested:
        return outcomes.confirm_cancelled(session, store, job.id, job.attempt)
    require_transition(JobState.RUNNING, JobState.QUEUED)
    job.state = JobState.QUEUED.value
    job.worker_id = job.lease_expires_at = job.stage = job.started_at = job.base_version = None
    job.done = job.total = 0
    session.add(JobEvent(job_id=job.id, kind="requeued", data={"attempt": job.attempt, "cause": cause}))
    return True
