"""What can go wrong between a client and the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.client.resources import Job

_SHOWN_PLACES = 5


class ClientError(Exception):
    """Base of everything the client raises; the message is one for people."""


class ServiceUnreachable(ClientError):
    """The service cannot be reached, or does not speak as it should."""


class ProblemError(ClientError):
    """The service refused: the problem (RFC 9457) it answered with. Branch on ``code``."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(body.get("code", ""))
        self.title = str(body.get("title", ""))
        self.detail = str(body.get("detail", ""))
        self.errors: list[dict[str, Any]] = list(body.get("errors") or [])
        self.request_id = str(body.get("request_id", ""))
        self.body = dict(body)
        super().__init__(". ".join(part.rstrip(".") for part in (self.title, self.detail, self._places()) if part))

    def _places(self) -> str:
        shown = "; ".join(_place(error) for error in self.errors[:_SHOWN_PLACES])
        left_out = int(self.body.get("errors_total", len(self.errors))) - _SHOWN_PLACES
        return f"{shown}; and {left_out} more" if left_out > 0 else shown


class JobFailed(ClientError):
    """A job that was waited for ended without success; ``job`` says how."""

    def __init__(self, job: Job) -> None:
        reason = f": {job.error.detail} ({job.error.code})" if job.error else "."
        super().__init__(f"The job {job.id} ({job.kind} of {job.model}) {job.state}{reason}")
        self.job = job


class WaitTimeout(ClientError):
    """A job had not ended in the time that the caller wanted to wait; it goes on."""

    def __init__(self, job: Job, seconds: float) -> None:
        super().__init__(f"The job {job.id} ({job.kind} of {job.model}) is still {job.state} after {seconds:g} s.")
        self.job = job


def _place(error: Mapping[str, Any]) -> str:
    where = error.get("pointer") or error.get("parameter")
    if where is None and error.get("row") is not None:
        where = f"row {error['row']}" + (f", column {error['column']}" if error.get("column") else "")
    said = error.get("message") or error.get("code")
    return f"{where}: {said}" if where else str(said)
