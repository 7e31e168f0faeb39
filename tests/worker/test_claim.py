from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Barrier
from uuid import UUID, uuid4

from sqlalchemy import select, text, update

from app.edits import outcomes
from app.tables import Job, Model
from tests.waiting import wait_until
from tests.worker.workshop import Workshop
from worker.claim import Claim, claim_next


def claim(workshop: Workshop, rung_for: UUID, worker_id: str = "w1") -> Claim | None:
    return claim_next(workshop.sessions, rung_for=rung_for, worker_id=worker_id, lease_seconds=8.0)


def finish(workshop: Workshop, held: Claim) -> None:
    new = outcomes.NewVersion(["stroke"], "0" * 64, "1" * 64, None, None, {}, "0")
    with workshop.sessions.begin() as session:
        assert outcomes.publish(session, held.job_id, held.attempt, new=new, report={})


def test_a_ring_for_any_job_claims_the_head_of_its_models_line(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    erasure = workshop.queue_edit("digits", priority=1)
    order = []
    for rung_for in (second, first, first):
        held = claim(workshop, rung_for)
        assert held is not None
        order.append(held.job_id)
        finish(workshop, held)
    assert order == [erasure, first, second]
    assert claim(workshop, first) is None


def test_a_claim_sets_attempt_worker_lease_and_base_in_one_go(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.queue_edit("digits")
    assert claim(workshop, job_id, "me") is not None
    job = workshop.job(job_id)
    assert (job.state, job.attempt, job.worker_id, job.base_version) == ("running", 1, "me", 1)
    assert job.lease_expires_at is not None
    assert job.started_at is not None
    assert (job.lease_expires_at - job.started_at).total_seconds() == 8.0
    assert workshop.events(job_id) == ["accepted", "started"]
    assert workshop.ledger(job_id) == ["edit.accepted", "edit.started"]


def test_nothing_is_claimed_while_a_job_of_the_model_runs(workshop: Workshop) -> None:
    workshop.add_model("digits")
    workshop.add_model("letters")
    first, second, other = (workshop.queue_edit(model) for model in ("digits", "digits", "letters"))
    assert claim(workshop, first) is not None
    assert claim(workshop, second) is None
    assert claim(workshop, other) is not None
    assert claim(workshop, uuid4()) is None  # a ring for a job that no one knows


def test_claims_at_once_are_one_claim(workshop: Workshop) -> None:
    workshop.add_model("digits")
    jobs = [workshop.queue_edit("digits") for _ in range(8)]
    together = Barrier(8)

    def attempt(job_id: UUID) -> Claim | None:
        together.wait()
        return claim(workshop, job_id)

    with ThreadPoolExecutor(8) as pool:
        claims = [held for held in pool.map(attempt, jobs) if held]
    assert [held.job_id for held in claims] == jobs[:1]


def test_a_head_locked_by_an_abandoned_change_is_waited_for_not_passed_over(workshop: Workshop) -> None:
    """A cancellation of the head that is rolled back must not let the second in line go first."""
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        with workshop.sessions() as session:
            session.execute(update(Job).where(Job.id == first).values(state="cancelled"))
            claiming = pool.submit(claim, workshop, second)
            wait_until(lambda: waiting_for_locks(workshop) == 1)
            session.rollback()
        held = claiming.result(10)
    assert held is not None
    assert held.job_id == first


def test_a_head_cancelled_at_the_same_moment_is_left_alone(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        with workshop.sessions.begin() as session:
            session.execute(update(Job).where(Job.id == first).values(state="cancelled"))
            claiming = pool.submit(claim, workshop, first)
            wait_until(lambda: waiting_for_locks(workshop) == 1)
        held = claiming.result(10)
    assert held is None or held.job_id == second
    assert workshop.job(first).state == "cancelled"


def test_a_claim_that_waited_for_a_publication_is_bound_to_what_was_published(workshop: Workshop) -> None:
    """The statement's snapshot is older than the publication it waited for; the base version must not be."""
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    held = claim(workshop, first)
    assert held is not None
    new = outcomes.NewVersion(["stroke"], "0" * 64, "1" * 64, None, None, {}, "0")
    with ThreadPoolExecutor(1) as pool:
        with workshop.sessions.begin() as session:
            assert outcomes.publish(session, held.job_id, held.attempt, new=new, report={})
            claiming = pool.submit(claim, workshop, second)
            wait_until(lambda: waiting_for_locks(workshop) == 1)
        waited = claiming.result(10)
    # Its snapshot still sees the first job running, so it may claim nothing; then the next ring claims.
    following = waited or claim(workshop, second)
    assert following is not None
    assert (following.job_id, following.job.base_version) == (second, 2)


def test_a_line_that_stays_locked_is_left_for_the_next_ring(workshop: Workshop) -> None:
    """A lease that begins with its claim must not be over, or nearly, when the claim has waited."""
    workshop.add_model("digits")
    job_id = workshop.queue_edit("digits")
    with workshop.sessions.begin() as session:
        session.execute(select(Model.id).where(Model.id == "digits").with_for_update(key_share=True))
        assert claim(workshop, job_id) is None
    assert claim(workshop, job_id) is not None


def test_many_workers_keep_a_line_in_order(workshop: Workshop) -> None:
    workshop.add_model("digits")
    jobs = [workshop.queue_edit("digits") for _ in range(24)]

    def work(number: int) -> None:
        for rung_for in cycle(jobs[number::4]):
            if workshop.versions("digits")[-1].number > len(jobs):
                return
            held = claim(workshop, rung_for)
            if held is not None:
                finish(workshop, held)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with workshop.sessions() as session:
        rows = session.execute(select(Job.id, Job.base_version, Job.result_version, Job.attempt).order_by(Job.seq))
        ran = [tuple(row) for row in rows][1:]  # without the one that made version 1
    assert ran == [(job_id, number, number + 1, 1) for number, job_id in enumerate(jobs, 1)]


def waiting_for_locks(workshop: Workshop) -> int:
    with workshop.owner.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return int(connection.execute(text(query)).scalar_one())
