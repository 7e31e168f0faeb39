"""The doorbell over Redis. Each ring is an RQ job that holds nothing but the id of ours."""

from __future__ import annotations

from uuid import UUID

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry
from rq import Queue
from rq.serializers import JSONSerializer

RING = "worker.jobs.run_job"
FAILURE_SECONDS = 60  # what RQ keeps of a ring that it could not deliver; ours are told in Postgres
ANSWER_SECONDS = 1.0  # a request has committed and waits for nothing but this

log = structlog.get_logger(__name__)


class RqDoorbell:
    """Rings by an RQ job whose id is that of our job, so that a ring still unheard is not repeated."""

    def __init__(self, redis_url: str, queue_name: str) -> None:
        self._connection = Redis.from_url(
            redis_url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # Once more, for a connection that went stale in the pool; not for one that does not answer.
            retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        )
        self._queue = Queue(queue_name, connection=self._connection, serializer=JSONSerializer)

    def ring(self, job_id: UUID) -> None:
        """Look whether a ring still waits (linear in waiting rings, about 10 µs per thousand), ring if not.

        Two rings at the same moment may both be heard; hearing twice is harmless.
        """
        name = str(job_id)
        try:
            if self._connection.lpos(self._queue.key, name) is None:
                self._queue.enqueue_call(
                    RING,
                    args=(name,),
                    job_id=name,
                    timeout=-1,  # the lease in Postgres bounds a job; RQ's alarm would fire in the wrong process
                    result_ttl=0,
                    failure_ttl=FAILURE_SECONDS,
                    description="a model has work",
                )
        except Exception as error:  # whoever rings has committed: the job will run, only later
            log.warning("doorbell_not_rung", job=name, error=type(error).__name__)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
