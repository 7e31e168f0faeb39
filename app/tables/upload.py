from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt


class Upload(Base):
    """A file sent ahead of the request that uses it; unused ones expire."""

    __tablename__ = "uploads"
    __table_args__ = (CheckConstraint("kind in ('image', 'weights')", name="kind"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # "up-" and random letters
    kind: Mapped[str]
    sha256: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
