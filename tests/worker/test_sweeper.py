from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from uuid import UUID

from sqlalchemy import func, select, update

from app.queueing import MemoryDoorbell
from app.tables import Job
from tests.worker.workshop import Workshop
from worker.claim import claim_next
from worker.sweeper import ADVISORY_LOCK, AGAIN_SECONDS, SETTLE_SECONDS, Sweeper

PERIOD = 30.0


def sweeper(workshop: Workshop, doorbell: MemoryDoorbell, max_deaths: int = 3) -> Sweeper:
    return Sweeper(workshop.sessions, workshop.store, doorbell, period=PERIOD, max_deaths=max_deaths)


def claim(workshop: Workshop, job_id: UUID, lease_seconds: float) -> None:
    assert claim_next(workshop.sessions, rung_for=job_id, worker_id="gone", lease_seconds=lease_seconds)


def test_it_rings_for_the_head_of_each_line_that_rests(workshop: Workshop) -> None:
    for model in ("busy", "digits", "empty", "letters"):
        workshop.add_model(model)
    claim(workshop, workshop.queue_edit("busy"), 60.0)
    workshop.queue_edit("busy")
    digits = [workshop.queue_edit("digits") for _ in range(3)]
    workshop.queue_edit("letters")
    urgent = workshop.queue_edit("letters", priority=1)
    doorbell = MemoryDoorbell()
    sweeper(workshop, doorbell).sweep()
    assert doorbell.rung == [digits[0], urgent]


def test_a_job_whose_worker_died_goes_back_to_its_place(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    claim(workshop, first, -1.0)
    doorbell = MemoryDoorbell()
    sweeper(workshop, doorbell).sweep()
    job = workshop.job(first)
    assert (job.state, job.attempt, job.deaths, job.worker_id, job.base_version) == ("queued", 1, 1, None, None)
    assert workshop.events(first) == ["accepted", "started", "requeued"]
    assert doorbell.rung == [first]
    assert workshop.job(second).state == "queued"


def test_a_job_that_died_too_often_fails_and_lets_the_next_go(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    doorbell = MemoryDoorbell()
    for _ in range(2):
        claim(workshop, first, -1.0)
        sweeper(workshop, doorbell, max_deaths=2).sweep()
    job = workshop.job(first)
    assert (job.state, job.deaths) == ("failed", 2)
    assert job.error == {"code": "worker_died_repeatedly", "detail": "The computation or its worker died 2 times."}
    assert workshop.ledger(first)[-1] == "edit.failed"
    assert doorbell.rung == [first, second]


def test_a_job_to_be_cancelled_is_cancelled_when_its_worker_died(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.queue_edit("digits")
    claim(workshop, job_id, -1.0)
    workshop.cancel(job_id)
    sweeper(workshop, MemoryDoorbell(), max_deaths=1).sweep()
    assert workshop.job(job_id).state == "cancelled"
    assert workshop.ledger(job_id)[-1] == "edit.cancelled"


def test_it_comes_back_as_soon_as_the_next_lease_ends(workshop: Workshop) -> None:
    workshop.add_model("digits")
    sweeps = sweeper(workshop, MemoryDoorbell())
    assert sweeps.sweep() == PERIOD
    job_id = workshop.queue_edit("digits")
    claim(workshop, job_id, 5.0)
    assert SETTLE_SECONDS < sweeps.sweep() <= 5.0 + SETTLE_SECONDS
    lease_of(workshop, job_id, 1000.0)
    assert sweeps.sweep() == PERIOD


def test_a_second_sweeper_does_nothing_while_one_acts(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.queue_edit("digits")
    claim(workshop, job_id, -1.0)
    doorbell = MemoryDoorbell()
    with workshop.sessions.begin() as session:
        session.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        assert sweeper(workshop, doorbell).sweep() == PERIOD
        assert workshop.job(job_id).state == "running"
        assert doorbell.rung == []
    sweeper(workshop, doorbell).sweep()
    assert workshop.job(job_id).state == "queued"


def test_sweepers_at_once_count_one_death(workshop: Workshop) -> None:
    models = [workshop.add_model(f"model-{number}") for number in range(5)]
    jobs = [workshop.queue_edit(model) for model in models]
    for job_id in jobs:
        claim(workshop, job_id, -1.0)
    together = Barrier(4)

    def act(_: int) -> None:
        sweeps = sweeper(workshop, MemoryDoorbell())
        together.wait()
        sweeps.sweep()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(4)))
    assert [(workshop.job(job_id).state, workshop.job(job_id).deaths) for job_id in jobs] == [("queued", 1)] * 5
    assert [workshop.events(job_id).count("requeued") for job_id in jobs] == [1] * 5


def test_a_row_that_someone_holds_is_left_for_the_next_sweep(workshop: Workshop) -> None:
    """Its worker may be publishing at this very moment, late."""
    workshop.add_model("digits")
    workshop.add_model("letters")
    held, free = workshop.queue_edit("digits"), workshop.queue_edit("letters")
    for job_id in (held, free):
        claim(workshop, job_id, -1.0)
    with workshop.sessions.begin() as session:
        session.execute(select(Job).where(Job.id == held).with_for_update())
        assert sweeper(workshop, MemoryDoorbell()).sweep() == AGAIN_SECONDS
        assert (workshop.job(held).state, workshop.job(free).state) == ("running", "queued")


def lease_of(workshop: Workshop, job_id: UUID, seconds: float) -> None:
    with workshop.sessions.begin() as session:
        later = func.now() + timedelta(seconds=seconds)
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=later))
