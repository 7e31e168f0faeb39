from __future__ import annotations

import uuid

from sqlalchemy import BigInteger, ForeignKey, Identity
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, JsonObject


class JobEvent(Base):
    """What happened to a job, for people who watch it: changes of state and of stage."""

    __tablename__ = "job_events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str]
    data: Mapped[JsonObject]
    created_at: Mapped[CreatedAt]
