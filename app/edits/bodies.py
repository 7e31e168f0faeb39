"""How a job is shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from app.edits.kinds import JobKind
from app.kit.idempotency import Answer
from app.kit.schemas import AnswerBody
from app.tables import Job


class Progress(AnswerBody):
    done: int
    total: int


class JobResult(AnswerBody):
    version: int


class JobError(AnswerBody):
    code: str
    detail: str


class JobBody(AnswerBody):
    """A job, and so an edit. ``stage`` and ``progress`` speak of the running attempt."""

    id: UUID
    model: str
    kind: str
    state: str
    stage: str | None
    progress: Progress
    attempt: int
    cancel_requested: bool
    request: dict[str, Any]
    base_version: int | None
    result: JobResult | None
    error: JobError | None
    report: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> JobBody:
        return cls(
            id=job.id,
            model=job.model_id,
            kind=job.kind,
            state=job.state,
            stage=job.stage,
            progress=Progress(done=job.done, total=job.total),
            attempt=job.attempt,
            cancel_requested=job.cancel_requested,
            request=job.request,
            base_version=job.base_version,
            result=None if job.result_version is None else JobResult(version=job.result_version),
            error=None if job.error is None else JobError(code=job.error["code"], detail=job.error["detail"]),
            report=job.report,
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
        )


class JobList(AnswerBody):
    jobs: list[JobBody]
    next_page_token: str | None


class EditList(AnswerBody):
    edits: list[JobBody]
    next_page_token: str | None


class PreviewList(AnswerBody):
    previews: list[JobBody]
    next_page_token: str | None


class EditCheck(AnswerBody):
    """What an edit would change, counted; nothing was written."""

    base_version: int
    counts: dict[str, int]


def job_path(job: Job) -> str:
    """Where the job is read."""
    collection = {JobKind.EDIT.value: "edits", JobKind.PREVIEW.value: "previews"}.get(job.kind, "jobs")
    return f"/models/{job.model_id}/{collection}/{job.id}"


def accepted(job: Job) -> Answer:
    """202 with where to look, and when to look again."""
    body = JobBody.of(job).model_dump(mode="json")
    return Answer(202, body, {"Location": job_path(job), "Retry-After": "1"})
