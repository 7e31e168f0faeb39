"""Edits, their previews, jobs, factors and retrainings of a model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.access.dependencies import Creator, Editor, Reader
from app.edits.bodies import EditCheck, EditList, JobBody, JobList, PreviewList, accepted
from app.edits.kinds import JobKind
from app.edits.resolution import Resolution
from app.edits.schemas import EditRequest, FactorsRequest, RetrainingRequest
from app.edits.service import (
    BASE_VERSION_CHANGED,
    FACTORS_NOT_NEEDED,
    INVALID_EDIT,
    JOB_FINISHED,
    cancel,
    check_edit,
    get_job,
    queue_edit,
    queue_work,
)
from app.edits.states import JobState
from app.kit.context import Services, ServicesDep
from app.kit.idempotency import CREATING_PROBLEMS, IdempotencyKey, IdempotencyKeyDep, claim_key, payload_digest
from app.kit.pagination import Page, PageDep, fetch_page
from app.kit.problem_handlers import places_detail, validation_errors
from app.kit.problems import INVALID_CURSOR, NOT_FOUND, PRECONDITION_FAILED, Problem
from app.kit.responses import problem_responses
from app.kit.routing import StrictRoute, make_router
from app.registry.lookup import MODEL_HAS_NO_VERSION, get_model
from app.tables import Job, Version

router = APIRouter()
_jobs = make_router("jobs")


class _EditRoute(StrictRoute):
    """Malformed edits are told of as ``invalid_edit``, like those that do not fit the version."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except RequestValidationError as error:
                places = validation_errors(error)
                if any("parameter" in place for place in places):
                    raise
                raise Problem(INVALID_EDIT, places_detail(len(places)), errors=places) from error

        return handle


_edits = APIRouter(tags=["edits"], route_class=_EditRoute)

_QUEUEING_PROBLEMS = (
    NOT_FOUND,
    INVALID_EDIT,
    MODEL_HAS_NO_VERSION,
    BASE_VERSION_CHANGED,
    PRECONDITION_FAILED,
    *CREATING_PROBLEMS,
)
IfMatch = Annotated[str | None, Header(description="The model's etag; the job is bound to that version.")]


@_edits.post(
    "/models/{model_id}/edits",
    status_code=202,
    summary="Edit a model",
    response_model=JobBody,
    responses={
        200: {"model": EditCheck, "description": "With `validate_only`: counts of what would change."},
        **problem_responses(*_QUEUEING_PROBLEMS),
    },
)
def create_edit(
    *,
    model_id: str,
    body: EditRequest,
    services: ServicesDep,
    caller: Editor,
    key: IdempotencyKeyDep,
    if_match: IfMatch = None,
    validate_only: Annotated[bool, Query(description="Check and count, write nothing; needs no key.")] = False,
) -> JSONResponse:
    """Queue an edit, after checking everything against the newest version.

    The check is a courtesy: edits queued earlier may change what this one is applied to. Names are resolved again
    when the edit starts, and then it may still fail with `base_version_changed` or `edit_no_longer_applies`.
    """
    if not validate_only:
        return _queue_edit(services, caller, model_id, JobKind.EDIT, body=body, key=key, if_match=if_match)
    with services.sessions.begin() as session:
        version, resolution = _check_edit(services, session, caller, model_id, body, if_match)
        return JSONResponse(EditCheck(base_version=version.number, counts=resolution.counts).model_dump())


@_edits.get(
    "/models/{model_id}/edits",
    summary="Edits of a model, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_edits(
    model_id: str, services: ServicesDep, caller: Reader, page: PageDep, state: JobState | None = None
) -> EditList:
    jobs, token = _page(services, caller, model_id, JobKind.EDIT, state, page)
    return EditList(edits=jobs, next_page_token=token)


@_edits.get("/models/{model_id}/edits/{edit_id}", summary="One edit", responses=problem_responses(NOT_FOUND))
def get_edit(model_id: str, edit_id: str, services: ServicesDep, caller: Reader) -> JobBody:
    with services.sessions() as session:
        return JobBody.of(get_job(session, get_model(session, caller, model_id), edit_id, kind=JobKind.EDIT))


@_edits.post(
    "/models/{model_id}/edits/{edit_id}:cancel",
    summary="Cancel an edit",
    responses=problem_responses(NOT_FOUND, JOB_FINISHED),
)
def cancel_edit(model_id: str, edit_id: str, services: ServicesDep, caller: Editor) -> JobBody:
    """A queued edit is cancelled at once. A running one is asked to stop: read it until its state is final."""
    return _cancel(services, caller, model_id, edit_id, JobKind.EDIT)


@_edits.post(
    "/models/{model_id}/previews",
    status_code=202,
    summary="Preview an edit",
    response_model=JobBody,
    responses=problem_responses(*_QUEUEING_PROBLEMS),
)
def create_preview(
    *,
    model_id: str,
    body: EditRequest,
    services: ServicesDep,
    caller: Editor,
    key: IdempotencyKeyDep,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Queue the computation of an edit that makes no version: what it would do is in the job's report.

    The body is that of the edit, and checked like it. Uploads of added samples stay for the edit itself. An edit that
    would be refused is a preview that succeeds: `would` and `error` of its report say so.
    """
    return _queue_edit(services, caller, model_id, JobKind.PREVIEW, body=body, key=key, if_match=if_match)


@_edits.get(
    "/models/{model_id}/previews",
    summary="Previews of edits, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_previews(
    model_id: str, services: ServicesDep, caller: Reader, page: PageDep, state: JobState | None = None
) -> PreviewList:
    jobs, token = _page(services, caller, model_id, JobKind.PREVIEW, state, page)
    return PreviewList(previews=jobs, next_page_token=token)


@_edits.get("/models/{model_id}/previews/{preview_id}", summary="One preview", responses=problem_responses(NOT_FOUND))
def get_preview(model_id: str, preview_id: str, services: ServicesDep, caller: Reader) -> JobBody:
    with services.sessions() as session:
        return JobBody.of(get_job(session, get_model(session, caller, model_id), preview_id, kind=JobKind.PREVIEW))


@_edits.post(
    "/models/{model_id}/previews/{preview_id}:cancel",
    summary="Cancel a preview",
    responses=problem_responses(NOT_FOUND, JOB_FINISHED),
)
def cancel_preview(model_id: str, preview_id: str, services: ServicesDep, caller: Editor) -> JobBody:
    """As for edits."""
    return _cancel(services, caller, model_id, preview_id, JobKind.PREVIEW)


def _check_edit(
    services: Services, session: Session, caller: Caller, model_id: str, body: EditRequest, if_match: str | None
) -> tuple[Version, Resolution]:
    return check_edit(
        session,
        services.store,
        caller,
        get_model(session, caller, model_id),
        body,
        if_match=if_match,
        max_items=services.settings.max_edit_items,
    )


def _queue_edit(
    services: Services,
    caller: Caller,
    model_id: str,
    kind: JobKind,
    *,
    body: EditRequest,
    key: IdempotencyKey,
    if_match: str | None,
) -> JSONResponse:
    with services.sessions.begin() as session:
        model = get_model(session, caller, model_id)
        digest = payload_digest({"body": body.model_dump(mode="json", by_alias=True), "if_match": if_match})
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=digest)
        if (replay := claim.replay()) is not None:
            return replay
        checked = version, _ = _check_edit(services, session, caller, model_id, body, if_match)
        bind = version.number if if_match is not None else body.base_version
        job = queue_edit(session, services.store, caller, model, body, checked=checked, bind=bind, kind=kind)
        answer = accepted(job)
        claim.record(session, answer)
    services.doorbell.ring(job.id)
    return answer.response()


def _page(
    services: Services, caller: Caller, model_id: str, kind: JobKind, state: JobState | None, page: Page
) -> tuple[list[JobBody], str | None]:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        statement = select(Job).where(Job.model_id == model.id, Job.kind == kind.value)
        if state is not None:
            statement = statement.where(Job.state == state.value)
        rows, token = fetch_page(
            session, statement, column=Job.seq, page=page, scope=f"{kind}s {model.id} {state}", newest_first=True
        )
        return [JobBody.of(job) for job in rows], token


def _cancel(services: Services, caller: Caller, model_id: str, job_id: str, kind: JobKind) -> JobBody:
    with services.sessions.begin() as session:
        job = get_job(session, get_model(session, caller, model_id), job_id, kind=kind, lock=True)
        cancel(session, services.store, caller, job)
        return JobBody.of(job)


@_jobs.get(
    "/models/{model_id}/jobs",
    summary="Jobs of a model, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_jobs(
    *,
    model_id: str,
    services: ServicesDep,
    caller: Reader,
    page: PageDep,
    state: JobState | None = None,
    kind: JobKind | None = None,
) -> JobList:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        statement = select(Job).where(Job.model_id == model.id)
        if state is not None:
            statement = statement.where(Job.state == state.value)
        if kind is not None:
            statement = statement.where(Job.kind == kind.value)
        rows, token = fetch_page(
            session, statement, column=Job.seq, page=page, scope=f"jobs {model.id} {state} {kind}", newest_first=True
        )
        return JobList(jobs=[JobBody.of(job) for job in rows], next_page_token=token)


@_jobs.get("/models/{model_id}/jobs/{job_id}", summary="One job", responses=problem_responses(NOT_FOUND))
def get_any_job(model_id: str, job_id: str, services: ServicesDep, caller: Reader) -> JobBody:
    with services.sessions() as session:
        return JobBody.of(get_job(session, get_model(session, caller, model_id), job_id))


@_jobs.post(
    "/models/{model_id}/jobs/{job_id}:cancel",
    summary="Cancel a job",
    responses=problem_responses(NOT_FOUND, JOB_FINISHED),
)
def cancel_job(model_id: str, job_id: str, services: ServicesDep, caller: Creator) -> JobBody:
    """As for edits, for a job of any kind."""
    with services.sessions.begin() as session:
        job = get_job(session, get_model(session, caller, model_id), job_id, lock=True)
        cancel(session, services.store, caller, job)
        return JobBody.of(job)


@_jobs.post(
    "/models/{model_id}/factors",
    status_code=202,
    summary="Fit curvature factors",
    response_model=JobBody,
    responses=problem_responses(NOT_FOUND, MODEL_HAS_NO_VERSION, FACTORS_NOT_NEEDED, *CREATING_PROBLEMS),
)
def fit_factors(
    model_id: str, body: FactorsRequest, services: ServicesDep, caller: Creator, key: IdempotencyKeyDep
) -> JSONResponse:
    """Queue a fit; the version's later children inherit the factors. A model with a frozen backbone needs none."""
    return _queue(services, caller, model_id, JobKind.FIT_FACTORS, body=body, key=key)


@_jobs.post(
    "/models/{model_id}/retrainings",
    status_code=202,
    summary="Train anew, for comparison",
    response_model=JobBody,
    responses=problem_responses(NOT_FOUND, MODEL_HAS_NO_VERSION, *CREATING_PROBLEMS),
)
def retrain(
    model_id: str, body: RetrainingRequest, services: ServicesDep, caller: Creator, key: IdempotencyKeyDep
) -> JSONResponse:
    """Queue a training on a version's data. It makes no version; the job's report holds its metrics and, for a version
    made by an edit, how the edit compares."""
    return _queue(services, caller, model_id, JobKind.RETRAIN, body=body, key=key)


def _queue(
    services: Services,
    caller: Caller,
    model_id: str,
    kind: JobKind,
    *,
    body: FactorsRequest | RetrainingRequest,
    key: IdempotencyKey,
) -> JSONResponse:
    with services.sessions.begin() as session:
        model = get_model(session, caller, model_id)
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=payload_digest(body))
        if (replay := claim.replay()) is not None:
            return replay
        job = queue_work(session, caller, model, kind, body)
        answer = accepted(job)
        claim.record(session, answer)
    services.doorbell.ring(job.id)
    return answer.response()


router.include_router(_edits)
router.include_router(_jobs)
