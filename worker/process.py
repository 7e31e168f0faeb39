"""The parent's end of the compute process: start it, talk to it, kill it."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any
from uuid import UUID

import structlog

from app.settings import Settings
from worker.tasks import Result, Task

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Ready:
    """The process has done its imports and waits for a task."""


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` steps of ``stage``."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Finished:
    """The task's result; its artifacts are durable."""

    result: Result


@dataclass(frozen=True)
class Failed:
    """The task ended without a version, as it may."""

    code: str
    detail: str


@dataclass(frozen=True)
class Crashed:
    """The task raised an exception that nobody expected; ``error`` is its type."""

    error: str


@dataclass(frozen=True)
class Died:
    """The process is gone; ``exitcode`` is negative for a signal."""

    exitcode: int | None


Message = Ready | Progress | Finished | Failed | Crashed | Died


class ComputeProcess:
    """One resident process, replaced when it dies or is killed.

    Start it from the main thread: the kernel kills it when the *thread* that started it ends.
    """

    def __init__(self, settings: Settings, executor: str) -> None:
        self._settings = settings.model_copy(update={"database_url": None, "redis_url": None})  # it needs no servers
        self._executor = executor
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether the process that was started last has done its imports, as far as its messages were read."""
        return self._ready

    @property
    def pid(self) -> int | None:
        """Process id, while one was started and not cleared away."""
        return None if self._process is None else self._process.pid

    def ensure_started(self) -> None:
        """Start a process unless one lives. It announces itself by ``Ready`` once, after its imports."""
        if self._process is not None:
            if self._process.is_alive():
                return
            self.kill()
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve,
            args=(theirs, os.getpid(), self._settings.model_dump_json(), self._executor),
            name="compute",
            daemon=True,
        )
        process.start()
        theirs.close()  # so that its death closes the pipe
        self._process, self._connection, self._ready = process, ours, False
        log.info("compute_process_started", pid=process.pid)

    def submit(self, task: Task, job_id: UUID) -> None:
        """Hand over a task to a ready process that has no other. A dead one is told by ``next_message``."""
        if self._connection is None:
            raise RuntimeError("no compute process was started")
        with suppress(BrokenPipeError):
            self._connection.send_bytes(json.dumps({"task": task.to_json(), "job": str(job_id)}).encode())

    def next_message(self, timeout: float) -> Message | None:
        """The next message, or None after ``timeout`` seconds without one."""
        if self._process is None or self._connection is None:
            return Died(None)
        if not wait([self._connection], timeout):
            return None
        try:
            message = _read(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            self._process.join()
            return Died(self._process.exitcode)
        self._ready |= isinstance(message, Ready)
        return message

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. A second call does nothing."""
        if self._process is not None:
            if self._process.is_alive():
                self._process.kill()
            self._process.join()
            self._process.close()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection, parent: int, settings_json: str, executor: str) -> None:
    from worker.resident import serve  # noqa: PLC0415 - the parent has no use for what it imports

    serve(connection, parent, settings_json, executor)


def _read(message: Mapping[str, Any]) -> Message:
    ((kind, content),) = message.items()
    match kind:
        case "ready":
            return Ready()
        case "progress":
            return Progress(*content)
        case "result":
            return Finished(Result.from_json(content))
        case "failure":
            return Failed(**content)
        case "crash":
            return Crashed(content)
    raise ValueError(f"the compute process sent a message of unknown kind {kind}")
