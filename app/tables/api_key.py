from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, UuidKey


class ApiKey(Base):
    """A caller's key. Only the SHA-256 of the secret is stored: it is 256 random bits, so a slow hash adds nothing."""

    __tablename__ = "api_keys"
    __table_args__ = (CheckConstraint("role in ('client', 'auditor', 'compliance', 'admin')", name="role"),)

    id: Mapped[UuidKey]
    name: Mapped[str]
    role: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[str]
    model_ids: Mapped[list[Any] | None]  # None: every model
    created_at: Mapped[CreatedAt]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
