"""The audit history of a model."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from sqlalchemy import select

from app.access.dependencies import Reader
from app.kit.context import ServicesDep
from app.kit.pagination import PageDep, fetch_page
from app.kit.problems import INVALID_CURSOR, NOT_FOUND
from app.kit.responses import problem_responses
from app.kit.routing import make_router
from app.kit.schemas import AnswerBody
from app.ledger.kinds import LedgerKind
from app.registry.lookup import get_model
from app.tables import LedgerEntry

router: APIRouter = make_router("ledger")


class LedgerEntryBody(AnswerBody):
    """One event. ``actor_ref`` is the id of an API key, ``worker``, or ``operator``."""

    seq: int
    at: datetime
    kind: str
    actor_ref: str
    dataset: str | None
    model: str | None
    job: UUID | None
    parent_version: int | None
    result_version: int | None
    artifact_sha256: str | None
    payload: dict[str, Any]

    @classmethod
    def of(cls, entry: LedgerEntry) -> LedgerEntryBody:
        return cls(
            seq=entry.seq,
            at=entry.at,
            kind=entry.kind,
            actor_ref=entry.actor_ref,
            dataset=entry.dataset_id,
            model=entry.model_id,
            job=entry.job_id,
            parent_version=entry.parent_version,
            result_version=entry.result_version,
            artifact_sha256=entry.artifact_sha256,
            payload=entry.payload,
        )


class Ledger(AnswerBody):
    entries: list[LedgerEntryBody]
    next_page_token: str | None


@router.get(
    "/models/{model_id}/ledger",
    summary="History of a model, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_entries(
    model_id: str, services: ServicesDep, caller: Reader, page: PageDep, kind: LedgerKind | None = None
) -> Ledger:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        statement = select(LedgerEntry).where(LedgerEntry.model_id == model.id)
        if kind is not None:
            statement = statement.where(LedgerEntry.kind == kind.value)
        rows, token = fetch_page(
            session,
            statement,
            column=LedgerEntry.seq,
            page=page,
            scope=f"ledger {model.id} {kind}",
            newest_first=True,
        )
        return Ledger(entries=[LedgerEntryBody.of(row) for row in rows], next_page_token=token)
