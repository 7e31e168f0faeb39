"""A model's line of jobs: joining it, and what is written about each step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.edits.kinds import JobKind, ledger_kind
from app.ledger import service as ledger
from app.tables import Job, JobEvent

WORKER = "worker"


def join(
    session: Session,
    *,
    model_id: str,
    dataset_id: str,
    kind: JobKind,
    request: dict[str, Any],
    created_by: UUID,
    counts: dict[str, Any] | None = None,
) -> Job:
    """Put a job at the end of the model's line. ``counts`` go to the ledger: numbers and names of concepts only."""
    job = Job(model_id=model_id, kind=kind.value, request=request, created_by=created_by)
    session.add(job)
    session.flush()
    session.refresh(job)
    record(session, job, "accepted", actor_ref=str(created_by), dataset_id=dataset_id, payload=counts)
    return job


def record(
    session: Session,
    job: Job,
    action: str,
    *,
    actor_ref: str = WORKER,
    dataset_id: str | None = None,
    result_version: int | None = None,
    artifact_sha256: str | None = None,
    payload: dict[str, Any] | None = None,
) -> None:
    """Write event and ledger entry of ``action`` (accepted, started, succeeded, failed, cancelled)."""
    session.add(JobEvent(job_id=job.id, kind=action, data={"attempt": job.attempt}))
    ledger.append(
        session,
        ledger_kind(JobKind(job.kind), action),
        actor_ref=actor_ref,
        dataset_id=dataset_id,
        model_id=job.model_id,
        job_id=job.id,
        parent_version=job.base_version,
        result_version=result_version,
        artifact_sha256=artifact_sha256,
        payload={"attempt": job.attempt, **(payload or {})},
    )
