from __future__ import annotations

from uuid import UUID


class MemoryDoorbell:
    """A doorbell that remembers instead of ringing, for tests of what rings it."""

    def __init__(self) -> None:
        self.rung: list[UUID] = []

    def ring(self, job_id: UUID) -> None:
        """Append to ``rung``, even what is there already."""
        self.rung.append(job_id)
