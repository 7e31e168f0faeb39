"""API keys, for administrators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import select

from app.access.dependencies import KeyManager
from app.access.keys import create_key, revoke_key
from app.access.rules import Role
from app.kit.context import ServicesDep
from app.kit.pagination import PageDep, fetch_page
from app.kit.problems import INVALID_CURSOR, NOT_FOUND, Problem
from app.kit.responses import BODY_PROBLEMS, problem_responses
from app.kit.routing import make_router
from app.kit.schemas import AnswerBody, RequestBody, Slug, Title
from app.tables import ApiKey

router: APIRouter = make_router("access")


class ApiKeyRequest(RequestBody):
    """``models`` limits the key; null means every model."""

    name: Title
    role: Literal["client", "auditor", "compliance", "admin"]
    models: Annotated[list[Slug], Field(min_length=1, max_length=1000)] | None = None


class ApiKeyBody(AnswerBody):
    id: UUID
    name: str
    role: str
    prefix: str
    models: list[str] | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> ApiKeyBody:
        return cls(
            id=key.id,
            name=key.name,
            role=key.role,
            prefix=key.prefix,
            models=key.model_ids,
            created_at=key.created_at,
            revoked_at=key.revoked_at,
            last_used_at=key.last_used_at,
        )


class NewApiKey(AnswerBody):
    """The only answer that ever holds the key's text."""

    api_key: ApiKeyBody
    key: str


class ApiKeyList(AnswerBody):
    api_keys: list[ApiKeyBody]
    next_page_token: str | None


@router.post("/api-keys", status_code=201, summary="Make an API key", responses=problem_responses(*BODY_PROBLEMS))
def post_key(body: ApiKeyRequest, services: ServicesDep, caller: KeyManager) -> NewApiKey:
    """Takes no Idempotency-Key: a replay would have to store the secret. A key whose answer was lost can be revoked."""
    with services.sessions.begin() as session:
        key, text = create_key(
            session, name=body.name, role=Role(body.role), model_ids=body.models, actor_ref=caller.actor_ref
        )
        return NewApiKey(api_key=ApiKeyBody.of(key), key=text)


@router.get("/api-keys", summary="API keys", responses=problem_responses(INVALID_CURSOR))
def list_keys(services: ServicesDep, caller: KeyManager, page: PageDep) -> ApiKeyList:
    with services.sessions() as session:
        rows, token = fetch_page(session, select(ApiKey), column=ApiKey.prefix, page=page, scope="api-keys")
        return ApiKeyList(api_keys=[ApiKeyBody.of(row) for row in rows], next_page_token=token)


@router.post("/api-keys/{key_id}:revoke", summary="Revoke an API key", responses=problem_responses(NOT_FOUND))
def post_revocation(key_id: str, services: ServicesDep, caller: KeyManager) -> ApiKeyBody:
    """Takes effect with the next request; revoking again changes nothing."""
    try:
        key_uuid = UUID(key_id)
    except ValueError as error:
        raise Problem(NOT_FOUND, "There is no such key.") from error
    with services.sessions.begin() as session:
        key = revoke_key(session, key_uuid, actor_ref=caller.actor_ref)
        if key is None:
            raise Problem(NOT_FOUND, "There is no such key.")
        return ApiKeyBody.of(key)
