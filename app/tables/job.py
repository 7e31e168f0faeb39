from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject, UuidKey


class Job(Base):
    """Work on one model, and its place in the model's line. An edit is its own job.

    Postgres is the truth about the queue; Redis only rings. A job runs under a lease: whoever holds the
    current ``attempt`` may publish, everyone else's writes match no row.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(
            "kind in ('train', 'register', 'fit_factors', 'edit', 'retrain', 'preview', 'insight', 'restore')",
            name="kind",
        ),
        CheckConstraint("state in ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
        Index("uq_jobs_model_id_running", "model_id", unique=True, postgresql_where=text("state = 'running'")),
        Index(
            "ix_jobs_line",
            "model_id",
            text("priority DESC"),
            "seq",
            postgresql_where=text("state = 'queued'"),
        ),
        Index("ix_jobs_history", "model_id", "kind", "seq"),
    )

    id: Mapped[UuidKey]
    seq: Mapped[int] = mapped_column(BigInteger, Identity(), unique=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="queued")
    priority: Mapped[int] = mapped_column(server_default="0")  # erasure goes first
    request: Mapped[JsonObject]  # what was asked, as asked; purged after an erasure
    base_version: Mapped[int | None]  # bound when the job starts
    stage: Mapped[str | None]
    done: Mapped[int] = mapped_column(server_default="0")
    total: Mapped[int] = mapped_column(server_default="0")
    attempt: Mapped[int] = mapped_column(server_default="0")
    deaths: Mapped[int] = mapped_column(server_default="0")  # attempts whose worker or computation died
    worker_id: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    error: Mapped[JsonObject | None]  # {"code", "detail"}
    report: Mapped[JsonObject | None]
    result_version: Mapped[int | None]
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[CreatedAt]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
