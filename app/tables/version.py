from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class Version(Base):
    """One immutable state of a model. Only ``state`` and the factor cache it points to ever change."""

    __tablename__ = "versions"
    __table_args__ = (
        CheckConstraint("state in ('ready', 'withdrawn')", name="state"),
        ForeignKeyConstraint(["model_id", "parent"], ["versions.model_id", "versions.number"]),
    )

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parent: Mapped[int | None]
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)  # one job, at most one version
    state: Mapped[str] = mapped_column(server_default="ready")
    concepts: Mapped[list[Any]]
    classes: Mapped[list[Any]]
    snapshot_digest: Mapped[str]
    weights_digest: Mapped[str]
    factors_digest: Mapped[str | None]
    factors_version: Mapped[int | None]  # the version the factors were fitted on; children inherit them
    metrics: Mapped[JsonObject]
    code_version: Mapped[str]
    created_at: Mapped[CreatedAt]
