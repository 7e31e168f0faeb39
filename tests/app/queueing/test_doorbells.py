from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from uuid import UUID, uuid4

import redis
from rq import Queue
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs

from app.queueing import Doorbell, MemoryDoorbell, RqDoorbell

QUEUE = "modelmend-tests"


def test_a_ring_is_json_and_waits_without_a_time_limit(redis_url: str) -> None:
    job_id = uuid4()
    _ring(redis_url, job_id)
    with redis.Redis.from_url(redis_url) as connection:
        (ring,) = Queue(QUEUE, connection=connection, serializer=JSONSerializer).jobs
        assert ring is not None
        assert json.loads(ring.data) == ["worker.jobs.run_job", None, [str(job_id)], {}]
        assert (ring.timeout, ring.result_ttl, ring.retries_left) == (-1, 0, None)


def test_a_ring_still_unheard_is_not_repeated(redis_url: str) -> None:
    first, second = uuid4(), uuid4()
    _ring(redis_url, first, second, first)
    with redis.Redis.from_url(redis_url) as connection:
        assert Queue(QUEUE, connection=connection).job_ids == [str(first), str(second)]


def test_a_ring_is_repeated_once_it_was_heard_or_redis_forgot_it(redis_url: str) -> None:
    job_id = uuid4()
    _ring(redis_url, job_id)
    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(QUEUE, connection=connection)
        connection.lpop(queue.key)
        _ring(redis_url, job_id)
        assert queue.job_ids == [str(job_id)]
        connection.flushdb()
        _ring(redis_url, job_id)
        assert queue.job_ids == [str(job_id)]


def test_without_redis_ringing_is_logged_and_returns(tmp_path: Path) -> None:
    job_id = uuid4()
    with capture_logs() as logs:
        _ring(f"unix://{tmp_path}/nothing.sock", job_id)
    assert logs == [
        {"event": "doorbell_not_rung", "log_level": "warning", "job": str(job_id), "error": "ConnectionError"}
    ]


def test_a_redis_that_does_not_answer_delays_a_request_by_seconds_at_most() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        started = time.monotonic()
        with capture_logs() as logs:
            _ring(f"redis://{host}:{port}", uuid4())
        assert logs[0]["error"] == "TimeoutError"
        assert time.monotonic() - started < 3.0  # ANSWER_SECONDS, and the machine's other work


def test_memory_doorbell_remembers_in_order() -> None:
    doorbell = MemoryDoorbell()
    first, second = uuid4(), uuid4()
    for job_id in (second, first, second):
        _as_doorbell(doorbell).ring(job_id)
    assert doorbell.rung == [second, first, second]


def _ring(url: str, *job_ids: UUID) -> None:
    doorbell = RqDoorbell(url, QUEUE)
    for job_id in job_ids:
        doorbell.ring(job_id)
    doorbell.close()


def _as_doorbell(doorbell: Doorbell) -> Doorbell:
    return doorbell
