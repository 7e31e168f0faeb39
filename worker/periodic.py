"""Work that a thread repeats for as long as the worker lives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

RETRY_SECONDS = 2.0
JOIN_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Periodic:
    """A thread that calls ``action`` and pauses for the seconds it returns; a database that fails is tried again."""

    def __init__(self, name: str, action: Callable[[], float], *, first_after: float = 0.0) -> None:
        self._name = name
        self._action = action
        self._first_after = first_after
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Call no more, and wait a moment for a call that runs."""
        self._stopping.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        pause = self._first_after
        while not self._stopping.wait(pause):
            try:
                pause = self._action()
            except (SQLAlchemyError, OSError) as error:
                log.warning("not_done", what=self._name, error=type(error).__name__)
                pause = RETRY_SECONDS
