from __future__ import annotations

from typing import Protocol
from uuid import UUID


class Doorbell(Protocol):
    """Tells some worker that a model's line has work. Losing a ring costs time only: the sweeper rings again."""

    def ring(self, job_id: UUID) -> None:
        """Ring for the model of ``job_id``, after the transaction that queued it has committed. Never raises."""
