from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from app.tables import Upload
from tests.worker.workshop import Workshop
from worker.housekeeping import ADVISORY_LOCK, PERIOD, tidy


def add_upload(workshop: Workshop, upload_id: str, expires_at: datetime) -> None:
    workshop.store.put_upload(upload_id, b"bytes")
    with workshop.sessions.begin() as session:
        session.add(
            Upload(
                id=upload_id,
                kind="image",
                sha256="0" * 64,
                bytes=5,
                created_by=workshop.key_id,
                expires_at=expires_at,
            )
        )


def test_uploads_go_when_their_time_is_over(workshop: Workshop) -> None:
    now = datetime.now(UTC)
    add_upload(workshop, "up-old", now - timedelta(hours=1))
    add_upload(workshop, "up-new", now + timedelta(hours=1))
    assert tidy(workshop.sessions, workshop.store) == PERIOD
    assert not workshop.store.upload_path("up-old").exists()
    assert workshop.store.upload_path("up-new").exists()


def test_one_worker_at_a_time_tidies(workshop: Workshop) -> None:
    add_upload(workshop, "up-old", datetime.now(UTC) - timedelta(hours=1))
    with workshop.sessions.begin() as session:
        session.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        assert tidy(workshop.sessions, workshop.store) == PERIOD
    assert workshop.store.upload_path("up-old").exists()
