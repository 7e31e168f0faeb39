from __future__ import annotations

import uuid

from sqlalchemy import BigInteger, Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class LedgerEntry(Base):
    """One event of the audit history. Holds references and counts only, never personal data.

    No foreign keys: the history outlives what it speaks of.
    """

    __tablename__ = "ledger_entries"
    __table_args__ = (Index("ix_ledger_entries_model_id_seq", "model_id", "seq"),)

    seq: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[CreatedAt]
    kind: Mapped[str]
    actor_ref: Mapped[str]  # id of an API key, or "worker"
    dataset_id: Mapped[str | None]
    model_id: Mapped[str | None]
    job_id: Mapped[uuid.UUID | None]
    parent_version: Mapped[int | None]
    result_version: Mapped[int | None]
    artifact_sha256: Mapped[str | None]
    payload: Mapped[JsonObject]
