"""kill -9 at every point of a job's life: each edit becomes exactly one version all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import func, select, text, update

from app.settings import Settings
from app.tables import Job, Model
from tests.worker.computations import calls
from tests.worker.workshop import Workshop


def test_killed_before_the_claim(workshop: Workshop) -> None:
    workshop.add_model("digits")
    worker = workshop.worker()
    with locked_model(workshop, "digits"):
        job_id = workshop.ask_for_edit("digits")
        workshop.wait(lambda: waiting_for_locks(workshop) == 1)  # the ring is heard, the claim waits
        worker.kill()
    assert_one_version(workshop, job_id, attempt=1, deaths=0)


def test_killed_in_the_middle_and_its_computation_with_it(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        worker = workshop.worker()
        workshop.wait(lambda: workshop.job(job_id).stage == "solving")
        worker.kill()
        workshop.wait_until_gone(calls()[0]["pid"])
    assert_one_version(workshop, job_id, attempt=2, deaths=1)
    assert workshop.events(job_id) == [
        *("accepted", "started", "stage", "stage", "requeued"),
        *("started", "stage", "stage", "stage", "succeeded"),
    ]


def test_killed_after_the_artifact_before_the_commit(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with ExitStack() as publication_waits:
        with workshop.held():
            worker = workshop.worker(lease_seconds=60.0)
            workshop.wait(lambda: len(calls()) == 1)
            before = artifacts(workshop)
            publication_waits.enter_context(locked_model(workshop, "digits"))
        workshop.wait(lambda: waiting_for_locks(workshop) == 1)
        assert len(artifacts(workshop) - before) == 1, "the weights are stored"
        worker.kill()
    expire_lease(workshop, job_id)
    assert_one_version(workshop, job_id, attempt=2, deaths=1)


def test_killed_after_the_commit(workshop: Workshop) -> None:
    workshop.add_model("digits")
    first, second = (workshop.queue_edit("digits") for _ in range(2))
    workshop.doorbell.ring(first)
    assert workshop.settings.redis_url
    with redis.Redis.from_url(workshop.settings.redis_url) as connection:
        with workshop.held():
            worker = workshop.worker(sweep_seconds=60.0)
            workshop.wait(lambda: len(calls()) == 1)
            connection.client_pause(20_000, all=False)  # the ring for the next job cannot leave
        workshop.wait_for_state(first, "succeeded")
        worker.kill()
        connection.client_unpause()
    assert_one_version(workshop, second, attempt=1, deaths=0, base=2)
    assert workshop.job(first).attempt == 1
    assert [version.job_id for version in workshop.versions("digits")][1:] == [first, second]


def test_the_computation_alone_is_killed(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        workshop.worker(lease_seconds=600.0)  # its parent, not the end of the lease, gives the job up
        workshop.wait(lambda: len(calls()) == 1)
        os.kill(calls()[0]["pid"], signal.SIGKILL)
        workshop.wait(lambda: len(calls()) == 2)
    job = workshop.wait_for_state(job_id, "succeeded")
    assert (job.attempt, job.deaths, job.result_version) == (2, 1, 2)
    assert calls()[0]["pid"] != calls()[1]["pid"]


def test_a_computation_that_always_dies_fails_its_job_and_not_the_next(workshop: Workshop) -> None:
    workshop.add_model("digits")
    workshop.behave("segfault")
    workshop.worker(lease_seconds=600.0, max_attempts=2)
    job_id = workshop.ask_for_edit("digits")
    job = workshop.wait_for_state(job_id, "failed")
    assert job.error == {"code": "worker_died_repeatedly", "detail": "The computation or its worker died 2 times."}
    assert (job.attempt, job.deaths, job.result_version) == (2, 2, None)
    workshop.behave("succeed")
    assert_one_version(workshop, workshop.ask_for_edit("digits"), attempt=1, deaths=0, start=False)


def test_a_zombie_that_finishes_late_publishes_nothing(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        worker = workshop.worker(lease_seconds=600.0, heartbeat_seconds=60.0)
        workshop.wait(lambda: workshop.job(job_id).stage == "solving")  # from here on it only looks at the row
        before = artifacts(workshop)
        worker.signal(signal.SIGSTOP)
        steal_lease(workshop, job_id)
    workshop.wait(lambda: len(artifacts(workshop) - before) == 1, message="the frozen worker's computation goes on")
    worker.signal(signal.SIGCONT)
    workshop.wait(lambda: '"held": false' in worker.log(), message="the zombie does not know that it is one")
    job = workshop.job(job_id)
    assert (job.state, job.attempt, job.worker_id) == ("running", 2, "thief")
    assert len(workshop.versions("digits")) == 1
    expire_lease(workshop, job_id)
    assert_one_version(workshop, job_id, attempt=3, deaths=1, start=False)


def test_a_worker_whose_lease_was_stolen_kills_its_computation(workshop: Workshop) -> None:
    workshop.add_model("digits")
    job_id = workshop.ask_for_edit("digits")
    with workshop.held():
        workshop.worker(lease_seconds=600.0, heartbeat_seconds=60.0)
        workshop.wait(lambda: len(calls()) == 1)
        steal_lease(workshop, job_id)
        workshop.wait_until_gone(calls()[0]["pid"])
    assert workshop.job(job_id).worker_id == "thief"


def test_with_the_default_settings_a_dead_worker_costs_less_than_ten_seconds(workshop: Workshop) -> None:
    defaults: dict[str, Any] = {
        name: Settings.model_fields[name].default for name in ("lease_seconds", "heartbeat_seconds", "sweep_seconds")
    }
    workshop.add_model("digits")
    with workshop.held():
        workers = [workshop.worker(**defaults) for _ in range(2)]
        workshop.wait(lambda: all(worker.listens() for worker in workers))
        job_id = workshop.ask_for_edit("digits")
        workshop.wait(lambda: len(calls()) == 1)
        busy = next(worker for worker in workers if "job_started" in worker.log())
        busy.kill()
        died_at = time.monotonic()
        workshop.wait(lambda: len(calls()) == 2)
        assert time.monotonic() - died_at < 10.0
    assert workshop.wait_for_state(job_id, "succeeded").attempt == 2


def assert_one_version(
    workshop: Workshop, job_id: UUID, *, attempt: int, deaths: int, base: int = 1, start: bool = True
) -> None:
    """A fresh worker, unless one still runs, brings the job to its end; nothing happened twice."""
    if start:
        workshop.worker()
    job = workshop.wait_for_state(job_id, "succeeded", "failed")
    assert (job.state, job.attempt, job.deaths) == ("succeeded", attempt, deaths), job.error
    assert (job.base_version, job.result_version) == (base, base + 1)
    assert [version.number for version in workshop.versions("digits")] == list(range(1, base + 2))
    assert workshop.ledger(job_id).count("version.published") == 1
    assert workshop.ledger(job_id).count("edit.succeeded") == 1


@contextmanager
def locked_model(workshop: Workshop, model_id: str) -> Iterator[None]:
    """What claims and publications wait for."""
    with workshop.sessions.begin() as session:
        session.execute(select(Model.id).where(Model.id == model_id).with_for_update(key_share=True))
        yield


def steal_lease(workshop: Workshop, job_id: UUID) -> None:
    """As another worker's claim would, after this one's lease had expired."""
    with workshop.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(attempt=Job.attempt + 1, worker_id="thief"))


def expire_lease(workshop: Workshop, job_id: UUID) -> None:
    with workshop.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=func.now()))


def artifacts(workshop: Workshop) -> set[str]:
    return {str(path) for path in (workshop.settings.data_dir / "artifacts" / "objects").glob("*/*")}


def waiting_for_locks(workshop: Workshop) -> int:
    with workshop.owner.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return int(connection.execute(text(query)).scalar_one())
