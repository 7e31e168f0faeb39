"""Hearing the doorbell: an RQ worker that forks nothing and keeps nothing in Redis about what it does."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer

from app.queueing.rq import RING
from worker.logs import log_unexpected
from worker.pulse import Pulse
from worker.stop import Stop

PRESENCE_SECONDS = 30  # how long Redis remembers a listener that vanished; half of it is one wait for a ring

log = structlog.get_logger(__name__)


class Listener(SimpleWorker):
    """Takes one ring at a time and answers it in this thread.

    A ring is used up when it is heard, before the work it leads to. So RQ has no record of running work that a killed
    process could leave behind, and a ring for the same job made meanwhile is a new ring. What a killed process was
    doing is known from its lease in Postgres alone.
    """

    max_connection_wait_time = 2.0

    def __init__(
        self, redis_url: str, queue_name: str, answer: Callable[[UUID], None], stop: Stop, pulse: Pulse
    ) -> None:
        connection = Redis.from_url(redis_url, retry=Retry(NoBackoff(), 1))
        super().__init__(
            [Queue(queue_name, connection=connection, serializer=JSONSerializer)],
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=PRESENCE_SECONDS,
            log_job_description=False,
        )
        self._answer = answer
        self._stop = stop
        self._pulse = pulse
        self._waiting = False

    def listen(self) -> None:
        """Answer rings until interrupted, or until Redis fails in a way that a new listener may get over."""
        try:
            self.work(logging_level="WARNING")
        except RedisError as error:
            log.warning("listener_lost_redis", error=type(error).__name__)
        finally:
            self.connection.close()

    def interrupt(self) -> None:
        """Called in a signal handler after a request to stop: end a wait for a ring at once."""
        self._stop_requested = True  # what RQ itself looks at, while suspended for one
        if self._waiting:
            raise StopRequested

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[RqJob, Queue] | None:
        try:
            self._waiting = True
            if self._stop.requested:  # looked at only now: a signal from here on interrupts
                raise StopRequested
            return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
        finally:
            self._waiting = False

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """RQ's own, before each wait for a ring: Redis remembers us, and answered."""
        super().heartbeat(timeout, pipeline)
        if pipeline is None:
            self._pulse.beat()

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        with self.connection.pipeline() as pipeline:
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            pipeline.delete(job.key)
            pipeline.execute()
        if job.func_name != RING:  # never import what a message names
            log.error("ring_not_understood", ring=job.id)
            return
        try:
            self._answer(UUID(job.args[0]))
        except Exception as error:  # the sweeper rings again
            log_unexpected("ring_not_answered", error, ring=job.id)

    def subscribe(self) -> None:
        """Take no commands over Redis: jobs are cancelled in Postgres, processes stopped by signals."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed to."""

    def _install_signal_handlers(self) -> None:
        """Whoever made this listener handles signals and calls ``interrupt``."""
