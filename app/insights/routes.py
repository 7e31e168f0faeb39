"""Insights into a version: asked for as a job, read with the keys and images of its rows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from app.access.dependencies import Creator, Reader
from app.edits.bodies import JobBody, accepted
from app.edits.kinds import JobKind
from app.edits.service import get_job
from app.insights.schemas import InsightKind, InsightList, InsightRequest
from app.insights.service import insights_of_job, newest_insights, queue_insight
from app.kit.context import ServicesDep
from app.kit.idempotency import CREATING_PROBLEMS, IdempotencyKeyDep, claim_key, payload_digest
from app.kit.problems import NOT_FOUND, Problem
from app.kit.responses import problem_responses
from app.kit.routing import make_router
from app.registry.lookup import VERSION_WITHDRAWN, get_model, get_version
from app.registry.routes import Number

router: APIRouter = make_router("insights")


@router.post(
    "/models/{model_id}/versions/{number}/insights",
    status_code=202,
    summary="Look into a version",
    response_model=JobBody,
    responses=problem_responses(NOT_FOUND, VERSION_WITHDRAWN, *CREATING_PROBLEMS),
)
def post_insights(
    *,
    model_id: str,
    number: Number,
    body: InsightRequest,
    services: ServicesDep,
    caller: Creator,
    key: IdempotencyKeyDep,
) -> JSONResponse:
    """Queue a job that computes insights and makes no version. Its own report names rows by internal ids: read the
    insights, once it has succeeded, with keys and links to images."""
    with services.sessions.begin() as session:
        model = get_model(session, caller, model_id)
        version = get_version(session, model, number)
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=payload_digest(body))
        if (replay := claim.replay()) is not None:
            return replay
        if version.state != "ready":
            raise Problem(VERSION_WITHDRAWN, "The version was withdrawn.")
        job = queue_insight(session, services.store, caller, model, version, body)
        answer = accepted(job)
        claim.record(session, answer)
    services.doorbell.ring(job.id)
    return answer.response()


@router.get(
    "/models/{model_id}/versions/{number}/insights",
    summary="The newest insight of each kind into a version",
    responses=problem_responses(NOT_FOUND),
)
def list_insights(
    *,
    model_id: str,
    number: Number,
    services: ServicesDep,
    caller: Reader,
    kind: Annotated[InsightKind | None, Query(description="Only this kind.")] = None,
) -> InsightList:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        version = get_version(session, model, number)
        kinds = list(InsightKind) if kind is None else [kind]
        return InsightList(insights=newest_insights(session, model, version, kinds))


@router.get(
    "/models/{model_id}/versions/{number}/insights/{job_id}",
    summary="The insights that one job found",
    responses=problem_responses(NOT_FOUND),
)
def get_insights(model_id: str, number: Number, job_id: str, services: ServicesDep, caller: Reader) -> InsightList:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        version = get_version(session, model, number)
        job = get_job(session, model, job_id, kind=JobKind.INSIGHT)
        return InsightList(insights=insights_of_job(session, model, version, job))
