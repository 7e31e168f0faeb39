"""Models, their versions, weights and aliases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import FileResponse, JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.access.dependencies import AliasMover, Creator, Editor, Reader
from app.edits.bodies import JobBody, accepted
from app.kit.context import ServicesDep
from app.kit.idempotency import CREATING_PROBLEMS, IdempotencyKeyDep, claim_key, payload_digest
from app.kit.pagination import PageDep, fetch_page
from app.kit.problems import (
    ALREADY_EXISTS,
    INVALID_CURSOR,
    NOT_FOUND,
    PRECONDITION_FAILED,
    Problem,
)
from app.kit.responses import BODY_PROBLEMS, problem_responses
from app.kit.routing import make_router
from app.kit.schemas import Slug
from app.registry.lookup import VERSION_WITHDRAWN, get_model, get_version
from app.registry.restoring import OBSTACLES, queue_restoration
from app.registry.schemas import (
    AliasBody,
    AliasList,
    AliasRequest,
    ModelBody,
    ModelList,
    ModelRequest,
    RestoreRequest,
    VersionBody,
    VersionList,
)
from app.registry.service import create_model, move_alias
from app.tables import Alias, Model, Version

Number = Annotated[int, Path(ge=1, le=2**31 - 1)]

router: APIRouter = make_router("models")


@router.post(
    "/models",
    status_code=202,
    summary="Train or register a model",
    response_model=JobBody,
    responses=problem_responses(ALREADY_EXISTS, *CREATING_PROBLEMS),
)
def post_model(body: ModelRequest, services: ServicesDep, caller: Creator, key: IdempotencyKeyDep) -> JSONResponse:
    """Create a model and queue the job that makes its version 1: a training, or with `weights` a registration.

    If that job fails, the model stays without a version; create another.
    """
    with services.sessions.begin() as session:
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=payload_digest(body))
        if (replay := claim.replay()) is not None:
            return replay
        _, job = create_model(session, caller, body)
        answer = accepted(job)
        claim.record(session, answer)
    services.doorbell.ring(job.id)
    return answer.response()


@router.get("/models", summary="Models by id", responses=problem_responses(INVALID_CURSOR))
def list_models(services: ServicesDep, caller: Reader, page: PageDep) -> ModelList:
    with services.sessions() as session:
        statement = select(Model)
        if caller.model_ids is not None:
            statement = statement.where(Model.id.in_(caller.model_ids))
        rows, token = fetch_page(session, statement, column=Model.id, page=page, scope="models")
        aliases = _aliases(session, [model.id for model in rows])
        return ModelList(models=[ModelBody.of(row, aliases.get(row.id, {})) for row in rows], next_page_token=token)


@router.get("/models/{model_id}", summary="One model", responses=problem_responses(NOT_FOUND))
def get_one_model(model_id: str, services: ServicesDep, caller: Reader, response: Response) -> ModelBody:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        body = ModelBody.of(model, _aliases(session, [model.id]).get(model.id, {}))
    response.headers["ETag"] = body.etag
    return body


@router.get(
    "/models/{model_id}/versions",
    summary="Versions of a model, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_versions(model_id: str, services: ServicesDep, caller: Reader, page: PageDep) -> VersionList:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        rows, token = fetch_page(
            session,
            select(Version).where(Version.model_id == model.id),
            column=Version.number,
            page=page,
            scope=f"versions {model.id}",
            newest_first=True,
        )
        return VersionList(versions=[VersionBody.of(row) for row in rows], next_page_token=token)


@router.get(
    "/models/{model_id}/versions/{number}",
    summary="One version",
    responses=problem_responses(NOT_FOUND),
)
def get_one_version(model_id: str, number: Number, services: ServicesDep, caller: Reader) -> VersionBody:
    with services.sessions() as session:
        return VersionBody.of(get_version(session, get_model(session, caller, model_id), number))


@router.get(
    "/models/{model_id}/versions/{number}/weights",
    summary="Weights of a version",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "A safetensors file."},
        **problem_responses(NOT_FOUND, VERSION_WITHDRAWN),
    },
)
def get_weights(model_id: str, number: Number, services: ServicesDep, caller: Reader) -> FileResponse:
    """The file's SHA-256 is the version's `weights_sha256`, and its ETag."""
    with services.sessions() as session:
        version = get_version(session, get_model(session, caller, model_id), number)
    if version.state != "ready":
        raise Problem(VERSION_WITHDRAWN, "The version was withdrawn.")
    return FileResponse(
        services.store.fetch(version.weights_digest),
        media_type="application/octet-stream",
        filename=f"{model_id}-v{number}.safetensors",
        headers={"ETag": f'"{version.weights_digest}"'},
    )


@router.post(
    "/models/{model_id}/versions/{number}:restore",
    status_code=202,
    summary="Return to an older version",
    response_model=JobBody,
    responses=problem_responses(NOT_FOUND, PRECONDITION_FAILED, *OBSTACLES.values(), *CREATING_PROBLEMS),
)
def restore_version(
    *,
    model_id: str,
    number: Number,
    body: RestoreRequest,
    services: ServicesDep,
    caller: Editor,
    key: IdempotencyKeyDep,
    if_match: Annotated[str | None, Header(description="The model's etag; the job is bound to that version.")] = None,
) -> JSONResponse:
    """Queue a new version with the older one's weights, data, concepts and factors; nothing is computed.

    Versions in between stay, and so do the rows that they added.
    """
    with services.sessions.begin() as session:
        model = get_model(session, caller, model_id)
        digest = payload_digest({"body": body.model_dump(mode="json"), "if_match": if_match})
        claim = claim_key(session, caller_id=caller.key_id, key=key, payload_sha256=digest)
        if (replay := claim.replay()) is not None:
            return replay
        job = queue_restoration(session, services.store, caller, model, number, body, if_match=if_match)
        answer = accepted(job)
        claim.record(session, answer)
    services.doorbell.ring(job.id)
    return answer.response()


@router.get("/models/{model_id}/aliases", summary="Aliases of a model", responses=problem_responses(NOT_FOUND))
def list_aliases(model_id: str, services: ServicesDep, caller: Reader) -> AliasList:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        rows = session.scalars(select(Alias).where(Alias.model_id == model.id).order_by(Alias.name))
        return AliasList(aliases=[AliasBody.of(row) for row in rows])


@router.put(
    "/models/{model_id}/aliases/{name}",
    summary="Point an alias at a version",
    responses=problem_responses(NOT_FOUND, *BODY_PROBLEMS),
)
def put_alias(
    model_id: str, name: Annotated[Slug, Path()], body: AliasRequest, services: ServicesDep, caller: AliasMover
) -> AliasBody:
    """Make or move an alias; versions stay as they are."""
    with services.sessions.begin() as session:
        return AliasBody.of(move_alias(session, caller, get_model(session, caller, model_id), name, body.version))


def _aliases(session: Session, model_ids: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for alias in session.scalars(select(Alias).where(Alias.model_id.in_(model_ids)).order_by(Alias.name)):
        found.setdefault(alias.model_id, {})[alias.name] = alias.version
    return found
