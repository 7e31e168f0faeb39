from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt, UuidKey


class Subject(Base):
    """The deletable mapping from a controller's name for a person to the random id used everywhere else."""

    __tablename__ = "subjects"

    id: Mapped[UuidKey]
    reference: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[CreatedAt]
