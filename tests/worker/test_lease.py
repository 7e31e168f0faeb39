from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, select, text, update

from app.database import make_engine
from app.tables import Job, JobEvent
from tests.waiting import wait_until
from tests.worker.workshop import Workshop
from worker.claim import Claim, claim_next
from worker.lease import Lease
from worker.process import Progress


@pytest.fixture
def held(workshop: Workshop) -> Claim:
    workshop.add_model("digits")
    claim = claim_next(workshop.sessions, rung_for=workshop.queue_edit("digits"), worker_id="me", lease_seconds=5.0)
    assert claim is not None
    return claim


def lease(engine: Engine, claim: Claim, *, lease_seconds: float = 5.0, heartbeat_seconds: float = 0.05) -> Lease:
    return Lease(engine, claim, lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)


def expiry(workshop: Workshop, claim: Claim) -> datetime:
    expires_at = workshop.job(claim.job_id).lease_expires_at
    assert expires_at is not None
    return expires_at


def wait_for_renewal(workshop: Workshop, claim: Claim) -> None:
    before = expiry(workshop, claim)
    wait_until(lambda: expiry(workshop, claim) > before)


def change(workshop: Workshop, claim: Claim, **values: object) -> None:
    with workshop.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == claim.job_id).values(values))


def test_it_is_renewed_again_and_again_and_left_alone_afterwards(workshop: Workshop, held: Claim) -> None:
    with lease(workshop.engine, held) as kept:
        for _ in range(3):
            wait_for_renewal(workshop, held)
        assert not kept.lost
    assert workshop.job(held.job_id).state == "running"


@pytest.mark.parametrize("change_to", [{"attempt": 2}, {"worker_id": "someone else"}, {"state": "queued"}])
def test_it_is_lost_when_the_row_is_somebody_elses(
    workshop: Workshop, held: Claim, change_to: dict[str, object]
) -> None:
    with lease(workshop.engine, held) as kept:
        change(workshop, held, **change_to)
        at_change = expiry(workshop, held)
        wait_until(lambda: kept.lost, 5)
        assert expiry(workshop, held) == at_change


def test_a_request_to_cancel_is_heard_between_renewals(workshop: Workshop, held: Claim) -> None:
    with lease(workshop.engine, held, lease_seconds=60.0, heartbeat_seconds=60.0) as kept:
        assert not kept.cancel_requested
        change(workshop, held, cancel_requested=True)
        wait_until(lambda: kept.cancel_requested, 5)
        assert not kept.lost


def test_a_heartbeat_longer_than_the_lease_is_not_waited_for(workshop: Workshop, held: Claim) -> None:
    with lease(workshop.engine, held, lease_seconds=3.0, heartbeat_seconds=60.0) as kept:
        wait_for_renewal(workshop, held)
        assert not kept.lost


def test_without_a_database_it_is_held_until_its_time_is_over(held: Claim) -> None:
    nowhere = create_engine("postgresql+psycopg://127.0.0.1:1/nothing")
    with lease(nowhere, held, lease_seconds=1e6) as kept:
        wait_until(lambda: not kept.lost)
    with lease(nowhere, held, lease_seconds=0.5) as kept:
        wait_until(lambda: kept.lost, 5)
    nowhere.dispose()


def test_it_survives_connections_that_the_server_ends(workshop: Workshop, held: Claim) -> None:
    own_engine = make_engine(workshop.engine.url.render_as_string(hide_password=False))
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    with lease(own_engine, held) as kept:
        for _ in range(3):
            wait_for_renewal(workshop, held)
            with workshop.owner.connect() as connection:
                connection.execute(text(others + " AND pid <> pg_backend_pid()"))
        wait_for_renewal(workshop, held)
        assert not kept.lost
    own_engine.dispose()


def test_every_stage_becomes_an_event_and_numbers_never_go_back(workshop: Workshop, held: Claim) -> None:
    with lease(workshop.engine, held, heartbeat_seconds=60.0) as kept:
        for stage in ("loading", "gradient", "solving"):
            kept.report(Progress(stage, 0, 9))
        kept.report(Progress("solving", 7, 9))
        kept.report(Progress("solving", 4, 9))
        wait_until(lambda: workshop.job(held.job_id).done == 7, 5)
        job = workshop.job(held.job_id)
        assert (job.stage, job.done, job.total) == ("solving", 7, 9)
        kept.report(Progress("evaluating", 1, 2))
        kept.flush()
        job = workshop.job(held.job_id)
        assert (job.stage, job.done, job.total) == ("evaluating", 1, 2)
    with workshop.sessions() as session:
        stages = select(JobEvent.data["stage"].astext).where(JobEvent.job_id == held.job_id, JobEvent.kind == "stage")
        assert list(session.scalars(stages.order_by(JobEvent.id))) == ["loading", "gradient", "solving", "evaluating"]


def test_numbers_within_a_stage_are_written_a_few_times_a_second(workshop: Workshop, held: Claim) -> None:
    writes: list[str] = []

    def count(_: Connection, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE jobs"):
            writes.append(statement)

    event.listen(workshop.engine, "before_cursor_execute", count)
    with lease(workshop.engine, held, heartbeat_seconds=60.0) as kept:
        kept.report(Progress("solving", 0, 10_000))
        for done in range(1, 10_001):
            kept.report(Progress("solving", done, 10_000))
        wait_until(lambda: workshop.job(held.job_id).done == 10_000, 5)
    event.remove(workshop.engine, "before_cursor_execute", count)
    # The reports take well under a second; written one by one they would be thousands.
    assert len(writes) < 20
