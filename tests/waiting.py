"""Waiting for what another process or thread does, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(predicate: Callable[[], Found], timeout: float = 10.0, message: str = "it did not happen") -> Found:
    """The first true value of ``predicate``, asked every 10 ms.

    Raises:
        TimeoutError: with ``message``, when none came within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    pause = Event()
    while not (found := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{message} (waited {timeout:g} s)")
        pause.wait(0.01)
    return found
