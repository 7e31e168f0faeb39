from __future__ import annotations

import uuid

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class IdempotencyRecord(Base):
    """The answer once given to a creating request, for replay (IETF Idempotency-Key)."""

    __tablename__ = "idempotency_records"

    caller_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    payload_sha256: Mapped[str]
    status: Mapped[int]
    headers: Mapped[JsonObject]
    body: Mapped[JsonObject]
    created_at: Mapped[CreatedAt]
