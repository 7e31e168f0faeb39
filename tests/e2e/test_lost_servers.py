"""Redis and Postgres that forget, or are away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from app.embedded import EmbeddedServers
from app.migrate import upgrade
from app.settings import Settings
from tests.worker.computations import calls
from tests.worker.workshop import Workshop


def test_redis_flushed_while_jobs_are_queued(workshop: Workshop) -> None:
    workshop.add_model("digits")
    jobs = [workshop.ask_for_edit("digits") for _ in range(3)]
    flush(workshop)
    workshop.worker()
    workshop.wait_for_state(jobs[-1], "succeeded")
    assert [version.job_id for version in workshop.versions("digits")][1:] == jobs


def test_redis_flushed_under_an_idle_worker_and_under_a_busy_one(workshop: Workshop) -> None:
    workshop.add_model("digits")
    workshop.worker()
    workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded")
    flush(workshop)
    workshop.wait_for_state(workshop.ask_for_edit("digits"), "succeeded")
    with workshop.held():
        busy, waiting = (workshop.ask_for_edit("digits") for _ in range(2))
        workshop.wait(lambda: len(calls()) == 3)
        flush(workshop)
    workshop.wait_for_state(waiting, "succeeded")
    assert workshop.job(busy).attempt == 1


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedServers]:
    with EmbeddedServers(tmp_path / "redis", postgres=False, durable=False) as servers:
        yield servers


def test_redis_down_when_a_job_is_asked_for_and_up_again(
    workshop: Workshop, own_redis: EmbeddedServers, settings: Settings
) -> None:
    url = own_redis.redis_url
    workshop.add_model("digits")
    worker = workshop.worker(redis_url=url)
    workshop.wait(worker.listens)
    own_redis.stop()
    job_id = workshop.ask_for_edit("digits", redis_url=url)
    workshop.wait(lambda: "redis" in worker.log().lower().partition("listening")[2])
    assert workshop.job(job_id).state == "queued"
    own_redis.start()
    assert own_redis.redis_url == url
    workshop.wait_for_state(job_id, "succeeded")
    assert worker.process.poll() is None
    workshop.wait_for_state(workshop.ask_for_edit("digits", redis_url=url), "succeeded")


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedServers]:
    with EmbeddedServers(tmp_path / "postgres", redis=False, durable=False) as servers:
        upgrade(servers.database_url)
        yield servers


@pytest.fixture
def own_workshop(
    own_postgres: EmbeddedServers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workshop]:
    """Like ``workshop``, with a Postgres that may be stopped."""
    monkeypatch.setenv("MODELMEND_TEST_STAGE", str(tmp_path))
    workshop = Workshop(settings.model_copy(update={"database_url": own_postgres.database_url}), tmp_path)
    yield workshop
    workshop.close()


def test_postgres_restarted_under_a_computation(own_workshop: Workshop, own_postgres: EmbeddedServers) -> None:
    own_workshop.add_model("digits")
    job_id = own_workshop.ask_for_edit("digits")
    with own_workshop.held():
        worker = own_workshop.worker(lease_seconds=60.0)
        own_workshop.wait(lambda: len(calls()) == 1)
        own_postgres.stop()
        own_workshop.wait(lambda: "lease_not_renewed" in worker.log())
    # The result is there and waits for the database.
    own_workshop.wait(lambda: "database_not_answering" in worker.log())
    own_postgres.start()
    job = own_workshop.wait_for_state(job_id, "succeeded")
    assert (job.attempt, job.deaths, job.result_version) == (1, 0, 2)
    assert len(calls()) == 1


def test_postgres_away_for_longer_than_the_lease(own_workshop: Workshop, own_postgres: EmbeddedServers) -> None:
    own_workshop.add_model("digits")
    job_id = own_workshop.ask_for_edit("digits")
    with own_workshop.held():
        own_workshop.worker()
        own_workshop.wait(lambda: len(calls()) == 1)
        own_postgres.stop()
        own_workshop.wait_until_gone(calls()[0]["pid"])
        own_postgres.start()
        own_workshop.wait(lambda: len(calls()) == 2)
    job = own_workshop.wait_for_state(job_id, "succeeded")
    assert (job.attempt, job.deaths, job.result_version) == (2, 1, 2)


def flush(workshop: Workshop) -> None:
    assert workshop.settings.redis_url
    with redis.Redis.from_url(workshop.settings.redis_url) as connection:
        connection.flushdb()
