"""The audit history, and the proofs that it is the one that was signed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any, TypeVar
from uuid import UUID

import structlog
from fastapi import APIRouter, Path, Query
from fastapi.responses import PlainTextResponse, StreamingResponse
from sqlalchemy import Select
from sqlalchemy.orm import Session, sessionmaker

from app.access.callers import Caller
from app.access.dependencies import Auditor, Reader
from app.edits.service import get_job
from app.kit.context import Services, ServicesDep
from app.kit.pagination import PageDep
from app.kit.problems import FORBIDDEN, INVALID_CURSOR, INVALID_REQUEST, NOT_FOUND, Problem, register_problem_type
from app.kit.responses import problem_responses
from app.kit.routing import make_router
from app.kit.schemas import AnswerBody
from app.ledger import receipts
from app.ledger.archive import ArchiveError
from app.ledger.entries import LedgerEntryBody
from app.ledger.filters import HistoryFilterDep, entries_with_payloads, history_page
from app.ledger.publishing import LedgerContradicted
from app.ledger.reading import consistency, inclusion_proofs, tree_size
from app.ledger.receipts import Receipt, receipt_of
from app.ledger.service import LedgerDamaged
from app.ledger.signing import SigningKeyError
from app.registry.lookup import get_model
from app.tables import LedgerEntry

router: APIRouter = make_router("ledger")
_log = structlog.get_logger(__name__)

LEDGER_NOT_SIGNED = register_problem_type(
    "ledger_not_signed",
    503,
    "The history is not signed just now",
    "Keep the checkpoints and receipts you have, and ask whoever runs the service: its log says why.",
)

_LINES_AT_ONCE = 256

Answer = TypeVar("Answer")
Seq = Annotated[int, Path(ge=1, le=2**53 - 1)]
Size = Annotated[int, Query(ge=0, le=2**53 - 1)]
_NOTE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
_JSONL: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/jsonl": {}}, "description": "One JSON object a line."}
}


class Ledger(AnswerBody):
    entries: list[LedgerEntryBody]
    next_page_token: str | None


class InclusionProof(AnswerBody):
    """That the tree of ``size`` entries holds entry number ``seq`` (RFC 9162, section 2.1.3); hashes in hex."""

    seq: int
    size: int
    proof: list[str]


class ConsistencyProof(AnswerBody):
    """That the tree of ``second`` entries begins with that of ``first`` (RFC 9162, section 2.1.4); hashes in hex."""

    first: int
    second: int
    proof: list[str]


class LedgerKeyBody(AnswerBody):
    """A verifier key, ``name+key id+base64``; a retired one verifies old checkpoints only."""

    key: str
    retired: bool


class LedgerKeyList(AnswerBody):
    origin: str
    keys: list[LedgerKeyBody]


@router.get(
    "/models/{model_id}/ledger",
    summary="History of a model, newest first",
    responses=problem_responses(NOT_FOUND, INVALID_CURSOR),
)
def list_model_entries(
    model_id: str, services: ServicesDep, caller: Reader, page: PageDep, wanted: HistoryFilterDep
) -> Ledger:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        return _body(history_page(session, wanted, page, scope=f"ledger {model.id}", models=[model.id]))


@router.get(
    "/models/{model_id}/ledger/export",
    summary="History of a model, each entry with its proof",
    responses=_JSONL | problem_responses(NOT_FOUND, LEDGER_NOT_SIGNED),
    response_class=StreamingResponse,
)
def export_model_ledger(model_id: str, services: ServicesDep, caller: Reader) -> StreamingResponse:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
    return _stream(services, lambda session: receipts.model_export(session, services.checkpoints, model.id))


@router.get(
    "/models/{model_id}/ledger/{seq}",
    summary="Receipt of one entry of a model",
    responses=problem_responses(NOT_FOUND, LEDGER_NOT_SIGNED),
)
def get_model_entry(model_id: str, seq: Seq, services: ServicesDep, caller: Reader) -> Receipt:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        statement = entries_with_payloads().where(LedgerEntry.seq == seq, LedgerEntry.model_id == model.id)
        return _receipt(services, session, statement)


@router.get(
    "/models/{model_id}/edits/{edit_id}/receipt",
    summary="Receipt of an edit: everything the history says about it",
    responses=problem_responses(NOT_FOUND, LEDGER_NOT_SIGNED),
)
def get_edit_receipt(model_id: str, edit_id: str, services: ServicesDep, caller: Reader) -> Receipt:
    with services.sessions() as session:
        model = get_model(session, caller, model_id)
        job_id: UUID = get_job(session, model, edit_id).id
        statement = entries_with_payloads().where(LedgerEntry.job_id == job_id).order_by(LedgerEntry.seq)
        return _receipt(services, session, statement)


@router.get("/ledger", summary="History of the deployment, newest first", responses=problem_responses(INVALID_CURSOR))
def list_entries(
    services: ServicesDep,
    caller: Auditor,
    page: PageDep,
    wanted: HistoryFilterDep,
    model: Annotated[str | None, Query(max_length=100)] = None,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
) -> Ledger:
    """A key that is limited to some models sees the entries of these."""
    with services.sessions() as session:
        models = caller.model_ids
        if model is not None:
            models = frozenset({model}) if models is None or model in models else frozenset()
        scope = f"ledger of all {caller.key_id} {model} {dataset}"
        return _body(history_page(session, wanted, page, scope=scope, models=models, dataset=dataset))


@router.get(
    "/ledger/entries/{seq}",
    summary="Receipt of one entry",
    responses=problem_responses(NOT_FOUND, LEDGER_NOT_SIGNED),
)
def get_entry(seq: Seq, services: ServicesDep, caller: Auditor) -> Receipt:
    with services.sessions() as session:
        statement = entries_with_payloads().where(LedgerEntry.seq == seq)
        if caller.model_ids is not None:
            statement = statement.where(LedgerEntry.model_id.in_(caller.model_ids))
        return _receipt(services, session, statement)


@router.get(
    "/ledger/export",
    summary="The whole history, to be verified offline",
    responses=_JSONL | problem_responses(LEDGER_NOT_SIGNED),
    response_class=StreamingResponse,
)
def export_ledger(services: ServicesDep, caller: Auditor) -> StreamingResponse:
    """Refused to keys that are limited to some models: these export a model's history."""
    _require_unlimited(caller)
    return _stream(services, lambda session: receipts.history_export(session, services.checkpoints))


@router.get(
    "/ledger/checkpoint",
    summary="Newest signed checkpoint (C2SP tlog-checkpoint)",
    responses=_NOTE | problem_responses(LEDGER_NOT_SIGNED),
    response_class=PlainTextResponse,
)
def get_checkpoint(services: ServicesDep, _: Reader) -> PlainTextResponse:
    with services.sessions() as session:
        return PlainTextResponse(_signed(lambda: services.checkpoints.newest(session, covering=1)))


@router.get(
    "/ledger/proofs/inclusion",
    summary="Proof that an entry is in a tree",
    responses=problem_responses(INVALID_REQUEST, LEDGER_NOT_SIGNED),
)
def get_inclusion_proof(
    services: ServicesDep, _: Reader, seq: Annotated[int, Query(ge=1, le=2**53 - 1)], size: Size
) -> InclusionProof:
    with services.sessions() as session:
        _require_order("seq", seq, size, tree_size(session))
        (proof,) = _signed(lambda: inclusion_proofs(session, [seq], size))
    return InclusionProof(seq=seq, size=size, proof=[step.hex() for step in proof])


@router.get(
    "/ledger/proofs/consistency",
    summary="Proof that a tree begins with an earlier one",
    responses=problem_responses(INVALID_REQUEST, LEDGER_NOT_SIGNED),
)
def get_consistency_proof(services: ServicesDep, _: Reader, first: Size, second: Size) -> ConsistencyProof:
    with services.sessions() as session:
        _require_order("first", first, second, tree_size(session))
        proof = _signed(lambda: consistency(session, first, second))
    return ConsistencyProof(first=first, second=second, proof=[step.hex() for step in proof])


@router.get("/ledger/keys", summary="Keys that sign checkpoints", responses=problem_responses(LEDGER_NOT_SIGNED))
def list_ledger_keys(services: ServicesDep, _: Reader) -> LedgerKeyList:
    """Present and past ones. Trust those that you were given by other ways than this service."""
    published = _signed(services.checkpoints.keys.published)
    origin = _signed(lambda: services.checkpoints.keys.origin)
    return LedgerKeyList(origin=origin, keys=[LedgerKeyBody(key=str(p.key), retired=p.retired) for p in published])


def _body(page: tuple[Sequence[LedgerEntry], str | None]) -> Ledger:
    rows, token = page
    return Ledger(entries=[LedgerEntryBody.of(row) for row in rows], next_page_token=token)


def _receipt(services: Services, session: Session, statement: Select[LedgerEntry]) -> Receipt:
    entries = session.scalars(statement).all()
    if not entries:
        raise Problem(NOT_FOUND, "There is no such entry.")
    return _signed(lambda: receipt_of(session, services.checkpoints, entries))


def _stream(services: Services, lines: Callable[[Session], Iterator[str]]) -> StreamingResponse:
    """The first line is made before the answer begins, so that what cannot be signed is a problem, not half a file."""
    exporting = _in_one_moment(services.sessions, lines)
    first = _signed(lambda: next(exporting))

    return StreamingResponse(_in_parts(chain([first], exporting)), media_type="application/jsonl")


def _in_parts(lines: Iterator[str]) -> Iterator[str]:
    """Many lines at once: each part costs a change of threads."""
    while part := "".join(islice(lines, _LINES_AT_ONCE)):
        yield part


def _in_one_moment(sessions: sessionmaker[Session], lines: Callable[[Session], Iterator[str]]) -> Iterator[str]:
    with sessions() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        yield from lines(session)


def _signed(action: Callable[[], Answer]) -> Answer:
    """Raises ``ledger_not_signed`` where history, keys or archive do not allow to sign or to prove."""
    try:
        return action()
    except (LedgerContradicted, LedgerDamaged, SigningKeyError, ArchiveError) as error:
        _log.error("checkpoint_refused", reason=str(error))
        raise Problem(LEDGER_NOT_SIGNED, "The stored history cannot be signed or proven as it is.") from error


def _require_unlimited(caller: Caller) -> None:
    if caller.model_ids is not None:
        raise Problem(FORBIDDEN, "This key is limited to some models, and the export holds all.")


def _require_order(name: str, smaller: int, larger: int, size: int) -> None:
    if not smaller <= larger <= size:
        message = f"Not {name} <= size of the tree <= {size}, the number of entries."
        error = {"parameter": name, "code": "out_of_range", "message": message}
        raise Problem(INVALID_REQUEST, "The tree has no such proof.", errors=[error])
