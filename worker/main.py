"""The worker: a parent that holds leases and talks to servers, and the compute process it keeps."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from types import FrameType
from uuid import UUID

import structlog
from redis.exceptions import RedisError

from app.artifacts import open_store
from app.database import make_sessions
from app.queueing import RqDoorbell
from app.settings import Settings
from worker.connections import impatient_engine
from worker.housekeeping import FIRST_AFTER, tidy
from worker.jobs import ComputeUnavailable, Worker, run_job
from worker.listener import Listener
from worker.periodic import Periodic
from worker.process import ComputeProcess
from worker.pulse import Pulse
from worker.stop import Stop
from worker.sweeper import Sweeper

EXECUTOR = "worker.compute.execute"
RECONNECT_SECONDS = 1.0
SILENT_SECONDS = 30.0  # between two statements of one transaction; files are read and removed in some

log = structlog.get_logger(__name__)


class ServersNotConfigured(ValueError):
    """A worker was started without knowing the servers it shares with the API."""

    def __init__(self) -> None:
        super().__init__(
            "Set MODELMEND_DATABASE_URL and MODELMEND_REDIS_URL to the servers that the API uses. "
            "`modelmend serve` without them starts servers and a worker of its own."
        )


def run(settings: Settings, *, executor: str = EXECUTOR) -> None:
    """Work until SIGTERM or SIGINT: the first lets a running job finish within ``settings.drain_seconds`` or hands it
    back, the second hands it back now. Call it in the main thread.

    Args:
        executor: dotted name of the function that the compute process calls for each task.

    Raises:
        ServersNotConfigured: a URL is missing.
        ComputeUnavailable: the compute process cannot start here.
    """
    if settings.database_url is None or settings.redis_url is None:
        raise ServersNotConfigured
    lease_engine = impatient_engine(settings.database_url, settings.lease_seconds)
    engine = impatient_engine(settings.database_url, SILENT_SECONDS)
    store = open_store(settings)
    doorbell = RqDoorbell(settings.redis_url, settings.queue_name)
    worker = Worker(
        settings=settings,
        worker_id=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        lease_engine=lease_engine,
        sessions=make_sessions(engine),
        store=store,
        doorbell=doorbell,
        process=ComputeProcess(settings, executor),
        stop=Stop(settings.drain_seconds),
        pulse=Pulse(settings.pulse_file),
    )
    sweeper = Sweeper(worker.sessions, store, doorbell, period=settings.sweep_seconds, max_deaths=settings.max_attempts)
    threads = [
        Periodic("sweeper", sweeper.sweep),
        Periodic("housekeeping", lambda: tidy(worker.sessions, store), first_after=FIRST_AFTER),
    ]
    log.info("worker_started", worker=worker.worker_id, device=settings.device)
    try:
        for thread in threads:
            thread.start()
        _listen(worker, settings.redis_url)
    finally:
        worker.pulse.end()
        worker.process.kill()
        for thread in threads:
            thread.stop()
        doorbell.close()
        engine.dispose()
        lease_engine.dispose()
        log.info("worker_stopped", worker=worker.worker_id)


def _listen(worker: Worker, redis_url: str) -> None:
    """Listen for rings, with a new listener whenever Redis failed under the last one."""
    listener: Listener | None = None
    failures: list[ComputeUnavailable] = []

    def stop() -> None:  # runs in a signal handler as well: no logging, its lock may be held by what was interrupted
        worker.stop.request()
        if listener is not None:
            listener.interrupt()

    def answer(job_id: UUID) -> None:
        try:
            run_job(worker, job_id)
        except ComputeUnavailable as error:
            failures.append(error)
            stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    worker.process.ensure_started()
    while not worker.stop.requested:
        try:
            listener = Listener(redis_url, worker.settings.queue_name, answer, worker.stop, worker.pulse)
            log.info("listening", queue=worker.settings.queue_name)
            listener.listen()
        except RedisError as error:
            log.warning("redis_not_answering", error=type(error).__name__)
        listener = None
        if not worker.stop.requested:
            threading.Event().wait(RECONNECT_SECONDS)
    if failures:
        raise failures[0]
