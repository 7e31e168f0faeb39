from __future__ import annotations

import uuid

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class Model(Base):
    """A concept bottleneck model: what never changes over its versions, and the newest version's number."""

    __tablename__ = "models"

    id: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str]
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    architecture: Mapped[JsonObject]
    training: Mapped[JsonObject]
    latest_version: Mapped[int | None]  # None until the first version is published
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[CreatedAt]
