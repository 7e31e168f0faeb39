from __future__ import annotations

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from app.tables import Job
from tests.waiting import wait_until
from tests.worker.workshop import Workshop
from worker.connections import impatient_engine


def test_a_silent_transaction_does_not_keep_a_row_locked(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.queue_edit("digits")
    engine = impatient_engine(workshop.engine.url.render_as_string(hide_password=False), 0.3)

    def free() -> bool:
        with workshop.sessions() as session:
            locked = select(Job.id).where(Job.id == job_id).with_for_update(skip_locked=True)
            return session.scalar(locked) is not None

    frozen = engine.connect()
    frozen.execute(update(Job).where(Job.id == job_id).values(stage="frozen"))
    assert not free()
    wait_until(free)
    with pytest.raises(DBAPIError, match="idle-in-transaction"):
        frozen.execute(text("SELECT 1"))
    frozen.close()
    engine.dispose()
    assert workshop.job(job_id).stage is None
