"""What keeps the service from running."""

from __future__ import annotations


class ServingError(RuntimeError):
    """The service cannot run here; the message says what to do next."""
