"""Health, and the documentation of problem types. Public."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.kit.context import ServicesDep
from app.kit.problems import NOT_FOUND, PROBLEM_TYPES, UNAVAILABLE, Problem, ProblemType
from app.kit.responses import problem_responses
from app.kit.routing import make_router

router: APIRouter = make_router("service")


@router.get("/healthz", summary="Is the process alive?", responses=problem_responses(public=True))
def health() -> dict[str, str]:
    """Says yes as long as the process answers; asks nothing else."""
    return {"status": "ok"}


@router.get("/readyz", summary="Can requests be served?", responses=problem_responses(UNAVAILABLE, public=True))
def readiness(services: ServicesDep) -> dict[str, str]:
    """Asks the database for the schema's revision. Jobs are accepted while Redis is down, so Redis is not asked."""
    try:
        with services.sessions() as session:
            revision = session.scalar(text("SELECT version_num FROM alembic_version"))
    except SQLAlchemyError as error:
        raise Problem(UNAVAILABLE, "The database does not answer.", headers={"Retry-After": "2"}) from error
    return {"status": "ready", "schema": str(revision)}


@router.get("/problems", summary="All problem types", responses=problem_responses(public=True))
def list_problems() -> dict[str, Any]:
    """Every kind of failure the service answers with."""
    return {"problems": [_described(type_) for _, type_ in sorted(PROBLEM_TYPES.items())]}


@router.get("/problems/{code}", summary="One problem type", responses=problem_responses(NOT_FOUND, public=True))
def get_problem(code: str) -> dict[str, Any]:
    """What a problem means, and what to do about it."""
    if code not in PROBLEM_TYPES:
        raise Problem(NOT_FOUND, "There is no such problem type.")
    return _described(PROBLEM_TYPES[code])


def _described(type_: ProblemType) -> dict[str, Any]:
    return {
        "type": type_.uri,
        "code": type_.code,
        "status": type_.status,
        "title": type_.title,
        "advice": type_.advice,
    }
