"""What becomes of the rows that an edit added: settled when it succeeds, discarded when it does not.

Apart from their staging, for workers need none of what checks images and manifests.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore, on_commit
from app.datasets import repository
from app.tables import Sample


def settle_added_samples(session: Session, job_id: UUID) -> None:
    """Makes the job's rows rows of the data set like all others."""
    session.execute(update(Sample).where(Sample.pending_job_id == job_id).values(pending_job_id=None))


def discard_added_samples(session: Session, store: ArtifactStore, job_id: UUID) -> int:
    """Deletes the rows that only the job names, subjects that nothing else names, and, after the commit, the images.

    Returns the number of rows.
    """
    gone = session.execute(
        delete(Sample).where(Sample.pending_job_id == job_id).returning(Sample.dataset_id, Sample.id, Sample.subject_id)
    ).all()
    if gone:
        dataset_id, ids = gone[0].dataset_id, [row.id for row in gone]
        repository.delete_subjects_without_rows(session, {row.subject_id for row in gone if row.subject_id is not None})
        on_commit(session, lambda: store.delete_images(dataset_id, ids))
    return len(gone)
