from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base


class Alias(Base):
    """A movable name for a version, such as ``production``."""

    __tablename__ = "aliases"
    __table_args__ = (ForeignKeyConstraint(["model_id", "version"], ["versions.model_id", "versions.number"]),)

    model_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
