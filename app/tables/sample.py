from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Base, CreatedAt


class Sample(Base):
    """One row of training data as it was registered; the image lies in the artifact store under the row's id.

    The labels a version was trained on are in its snapshot: edits never change this table's labels.
    """

    __tablename__ = "samples"
    __table_args__ = (
        UniqueConstraint("dataset_id", "key"),
        CheckConstraint("split in ('train', 'calibration', 'test')", name="split"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    key: Mapped[str]
    split: Mapped[str]
    class_index: Mapped[int]
    concepts: Mapped[list[Any]]  # 0, 1 or null per concept of the data set
    votes: Mapped[bytes | None]  # one byte per concept, as app.datasets.votes has them, where classes vote on labels
    subject_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("subjects.id"), index=True)
    image_sha256: Mapped[str]
    image_bytes: Mapped[int]
    # Set while only an edit that has not succeeded yet names the row; such rows go when the edit fails.
    pending_job_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    created_at: Mapped[CreatedAt]
