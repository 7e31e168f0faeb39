from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class Dataset(Base):
    """Registered training data. Its rows are fixed by ``snapshot_digest``; model versions hold edited snapshots."""

    __tablename__ = "datasets"

    id: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str]
    concepts: Mapped[list[Any]]
    classes: Mapped[list[Any]]
    snapshot_digest: Mapped[str]
    vote_rule: Mapped[JsonObject | None]  # how classes vote on concept labels; None where each row has its own
    counts: Mapped[JsonObject]  # {"train": n, "calibration": n, "test": n}
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[CreatedAt]
