"""Writing the history: an entry belongs to the transaction of the change it records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.ledger.kinds import LedgerKind
from app.tables import LedgerEntry


def append(
    session: Session,
    kind: LedgerKind,
    *,
    actor_ref: str,
    dataset_id: str | None = None,
    model_id: str | None = None,
    job_id: UUID | None = None,
    parent_version: int | None = None,
    result_version: int | None = None,
    artifact_sha256: str | None = None,
    payload: dict[str, Any] | None = None,
) -> LedgerEntry:
    """Add one entry.

    Args:
        actor_ref: id of the API key that asked, ``worker``, or ``operator`` for the command line.
        payload: counts, digests, names of concepts; never keys of samples, subjects, reasons or other free text.
    """
    entry = LedgerEntry(
        kind=kind.value,
        actor_ref=actor_ref,
        dataset_id=dataset_id,
        model_id=model_id,
        job_id=job_id,
        parent_version=parent_version,
        result_version=result_version,
        artifact_sha256=artifact_sha256,
        payload=payload or {},
    )
    session.add(entry)
    session.flush()
    return entry
