from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from app.tables.base import Base
from app.tables.ledger_payload import LedgerPayload


def _index_of_version(*columns: str) -> Index:
    """Most entries are of no version."""
    return Index(
        f"ix_ledger_entries_{'_'.join(columns)}", *columns, "seq", postgresql_where=text(f"{columns[-1]} IS NOT NULL")
    )


class LedgerEntry(Base):
    """One event of the audit history: a leaf of the Merkle tree, at index ``seq - 1``.

    Holds references, digests and a commitment only, so that it need never change; the database refuses to change or
    delete it. No foreign keys: the history outlives what it speaks of.
    """

    __tablename__ = "ledger_entries"
    __table_args__ = (
        CheckConstraint("seq > 0", name="seq"),
        CheckConstraint("octet_length(payload_commitment) = 32", name="payload_commitment"),
        # Each filter of the history, in the order of its pages.
        Index("ix_ledger_entries_model_id", "model_id", "seq"),
        Index("ix_ledger_entries_model_id_kind", "model_id", "kind", "seq"),
        Index("ix_ledger_entries_model_id_kind_actor_ref", "model_id", "kind", "actor_ref", "seq"),
        Index("ix_ledger_entries_model_id_actor_ref", "model_id", "actor_ref", "seq"),
        _index_of_version("model_id", "parent_version"),
        _index_of_version("model_id", "result_version"),
        _index_of_version("parent_version"),
        _index_of_version("result_version"),
        Index("ix_ledger_entries_dataset_id", "dataset_id", "seq"),
        Index("ix_ledger_entries_kind", "kind", "seq"),
        Index("ix_ledger_entries_kind_actor_ref", "kind", "actor_ref", "seq"),
        Index("ix_ledger_entries_actor_ref", "actor_ref", "seq"),
        Index("ix_ledger_entries_job_id", "job_id", "seq"),
        Index("ix_ledger_entries_at", "at", "seq"),
    )

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[datetime]  # never before that of the entry before
    kind: Mapped[str]
    actor_ref: Mapped[str]  # id of an API key, "worker" or "operator"
    subject_ref: Mapped[str | None]
    dataset_id: Mapped[str | None]
    model_id: Mapped[str | None]
    job_id: Mapped[uuid.UUID | None]
    parent_version: Mapped[int | None]
    result_version: Mapped[int | None]
    artifact_sha256: Mapped[str | None]
    payload_commitment: Mapped[bytes]

    opening: Mapped[LedgerPayload | None] = relationship(
        primaryjoin=lambda: LedgerEntry.seq == LedgerPayload.seq,
        foreign_keys=LedgerPayload.seq,
        viewonly=True,
        uselist=False,
        lazy="raise",
    )
