"""How urgently this process was asked to end."""

from __future__ import annotations

import signal
import time


class Stop:
    """Counts requests to stop, which arrive in signal handlers: nothing here waits, locks or talks to a server."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._drained_at: float | None = None

    def request(self) -> None:
        """The first request lets the running job finish within the bound, the second ends it now.

        After the second the signals have their default effect, for a process that hangs while it ends.
        """
        now = time.monotonic()
        if self._drained_at is None:
            self._drained_at = now + self._drain_seconds
        else:
            self._drained_at = now
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @property
    def requested(self) -> bool:
        """Whether no further job may begin."""
        return self._drained_at is not None

    @property
    def now(self) -> bool:
        """Whether the running job must be given back."""
        return self._drained_at is not None and time.monotonic() >= self._drained_at
