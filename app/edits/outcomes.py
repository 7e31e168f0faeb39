"""Ends of a job, as the worker reports them. Each is one transaction of the caller's, fenced by the attempt.

All return whether this attempt still held the job. ``False`` means that another attempt took over, or that the job
ended otherwise; then nothing was written and the caller's artifacts are nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore
from app.datasets.settlement import discard_added_samples, settle_added_samples
from app.edits import line
from app.edits.kinds import JobKind
from app.edits.states import JobState, require_transition
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.tables import Dataset, Job, Model, Version


@dataclass(frozen=True)
class NewVersion:
    """What a job made: digests of artifacts that are durable in the store.

    ``factors_version`` is the version the factors were fitted on, or ``"this"`` for the new version itself.
    """

    concepts: list[str]
    snapshot_digest: str
    weights_digest: str
    factors_digest: str | None
    factors_version: int | Literal["this"] | None
    metrics: dict[str, Any]
    code_version: str


def start(session: Session, job: Job) -> None:
    """Write down that an attempt of ``job``, just claimed in this transaction, starts."""
    line.record(session, job, "started")


def publish(session: Session, job_id: UUID, attempt: int, *, new: NewVersion, report: dict[str, Any]) -> bool:
    """End a job with a new version: the newest number plus one, child of the version the job was bound to.

    The child of the version it restores, where that is the job.
    """
    model = _locked_model(session, job_id)
    job = _end(session, job_id, attempt, JobState.SUCCEEDED, report=report)
    if job is None:
        return False
    parent_number = job.request["version"] if job.kind == JobKind.RESTORE else job.base_version
    parent = session.get(Version, (model.id, parent_number)) if parent_number is not None else None
    classes = parent.classes if parent is not None else session.get_one(Dataset, model.dataset_id).classes
    number = (model.latest_version or 0) + 1
    session.add(
        Version(
            model_id=model.id,
            number=number,
            parent=parent_number,
            job_id=job.id,
            concepts=new.concepts,
            classes=classes,
            snapshot_digest=new.snapshot_digest,
            weights_digest=new.weights_digest,
            factors_digest=new.factors_digest,
            factors_version=number if new.factors_version == "this" else new.factors_version,
            metrics=new.metrics,
            code_version=new.code_version,
        )
    )
    model.latest_version = number
    job.result_version = number
    session.flush()
    settle_added_samples(session, job.id)
    ledger.append(
        session,
        LedgerKind.VERSION_PUBLISHED,
        actor_ref=line.WORKER,
        dataset_id=model.dataset_id,
        model_id=model.id,
        job_id=job.id,
        parent_version=parent_number,
        result_version=number,
        artifact_sha256=new.weights_digest,
        payload={
            "snapshot_sha256": new.snapshot_digest,
            "factors_sha256": new.factors_digest,
            "concepts": new.concepts,
            "code_version": new.code_version,
        },
    )
    line.record(session, job, "succeeded", result_version=number, artifact_sha256=new.weights_digest)
    return True


def finish_without_version(
    session: Session,
    store: ArtifactStore,
    job_id: UUID,
    attempt: int,
    *,
    report: dict[str, Any],
    factors_digest: str | None = None,
) -> bool:
    """End a job that makes no version; factors it fitted belong to the version it was run on.

    Rows that a preview would have added go.
    """
    model = _locked_model(session, job_id)
    job = _end(session, job_id, attempt, JobState.SUCCEEDED, report=report)
    if job is None:
        return False
    if factors_digest is not None:
        number = job.request.get("version") or job.base_version
        version = session.get_one(Version, (model.id, number))
        version.factors_digest, version.factors_version = factors_digest, version.number
        session.flush()
        ledger.append(
            session,
            LedgerKind.VERSION_FACTORS_FITTED,
            actor_ref=line.WORKER,
            dataset_id=model.dataset_id,
            model_id=model.id,
            job_id=job.id,
            parent_version=version.number,
            artifact_sha256=factors_digest,
        )
    discard_added_samples(session, store, job.id)
    line.record(session, job, "succeeded", artifact_sha256=factors_digest)
    return True


def fail(
    session: Session,
    store: ArtifactStore,
    job_id: UUID,
    attempt: int,
    *,
    code: str,
    detail: str,
    report: dict[str, Any] | None = None,
) -> bool:
    """End a job with an error that its client reads; rows that it would have added go."""
    job = _end(session, job_id, attempt, JobState.FAILED, error={"code": code, "detail": detail}, report=report)
    if job is None:
        return False
    discard_added_samples(session, store, job.id)
    line.record(session, job, "failed", payload={"code": code})
    return True


def confirm_cancelled(session: Session, store: ArtifactStore, job_id: UUID, attempt: int) -> bool:
    """End a running job whose cancellation was asked for, once its computation has stopped."""
    job = _end(session, job_id, attempt, JobState.CANCELLED)
    if job is None:
        return False
    discard_added_samples(session, store, job.id)
    line.record(session, job, "cancelled")
    return True


def _locked_model(session: Session, job_id: UUID) -> Model:
    """The job's model, locked before the job as everywhere, so that nobody waits in a circle."""
    return session.execute(
        select(Model)
        .join(Job, Job.model_id == Model.id)
        .where(Job.id == job_id)
        .with_for_update(of=Model, key_share=True)
        .execution_options(populate_existing=True)
    ).scalar_one()


def _end(
    session: Session,
    job_id: UUID,
    attempt: int,
    state: JobState,
    *,
    error: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
) -> Job | None:
    """The fence: the row changes only while ``attempt`` runs it."""
    require_transition(JobState.RUNNING, state)
    return session.scalars(
        update(Job)
        .where(Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING.value)
        .values(
            state=state.value, error=error, report=report, finished_at=func.now(), lease_expires_at=None, stage=None
        )
        .returning(Job)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).one_or_none()
