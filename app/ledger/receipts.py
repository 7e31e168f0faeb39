"""What leaves the service as proof: receipts of some entries, and exports of many.

Forms are described in docs/audit.md; ``app.ledger.verification`` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from sqlalchemy import Row, Select, select, text
from sqlalchemy.orm import Session

from app.kit.schemas import AnswerBody
from app.ledger.archive import ConflictingCheckpoint
from app.ledger.checkpoints import parse_checkpoint
from app.ledger.entries import LedgerEntryBody, entry_text
from app.ledger.exports import LEDGER_FORMAT, MODEL_FORMAT, RECEIPT_FORMAT
from app.ledger.filters import entries_with_payloads
from app.ledger.publishing import CheckpointPublisher, LedgerContradicted
from app.ledger.reading import inclusion_proofs, tree_size
from app.ledger.service import LedgerDamaged
from app.tables import LedgerEntry, LedgerPayload

_log = structlog.get_logger(__name__)
_NO_NOTE = (2**63, "")
_CHUNK = 1024  # entries at once: a few hundred KB
# Nodes that entries number :first to :last completed: those whose last leaf is one of them.
_COMPLETED = text("""
    SELECT ((position + 1) << level) AS seq, hash FROM generate_series(0, 40) AS wanted
    JOIN ledger_nodes ON level = wanted
        AND position BETWEEN ((CAST(:first AS bigint) + (1::bigint << wanted) - 1) >> wanted) - 1
                         AND (CAST(:last AS bigint) >> wanted) - 1
    ORDER BY seq, level
""")


class ProvenEntry(AnswerBody):
    entry: LedgerEntryBody
    inclusion_proof: list[str]


class Receipt(AnswerBody):
    """Entries and the proof that the tree with the checkpoint's size and root holds them."""

    format: str
    checkpoint: str
    entries: list[ProvenEntry]


def receipt_of(session: Session, publisher: CheckpointPublisher, entries: Sequence[LedgerEntry]) -> Receipt:
    """For entries with their openings loaded, at least one."""
    checkpoint = publisher.newest(session, covering=max(entry.seq for entry in entries))
    size = parse_checkpoint(checkpoint).checkpoint.size
    proofs = inclusion_proofs(session, [entry.seq for entry in entries], size)
    return Receipt(
        format=RECEIPT_FORMAT,
        checkpoint=checkpoint,
        entries=[
            ProvenEntry(entry=LedgerEntryBody.of(entry), inclusion_proof=[step.hex() for step in proof])
            for entry, proof in zip(entries, proofs, strict=True)
        ],
    )


def history_export(session: Session, publisher: CheckpointPublisher) -> Iterator[str]:
    """Lines of everything: entries, stored nodes, and every published checkpoint after its last entry.

    A history that is not the one signed before is exported too, with the checkpoints that it contradicts and no new
    one: whoever verifies it learns from which entry on.

    ``session`` must see one moment throughout (REPEATABLE READ), or a payload erased meanwhile would be missing
    without the entry that says so.
    """
    size = tree_size(session)
    contradicted = False
    try:
        publisher.publish(session)
    except (LedgerContradicted, LedgerDamaged, ConflictingCheckpoint) as error:
        contradicted = True
        _log.error("checkpoint_refused", reason=str(error))
    keys = publisher.keys.published()
    yield _line(
        {"format": LEDGER_FORMAT, "origin": publisher.keys.origin, "size": size, "keys": [str(k.key) for k in keys]}
    )
    notes = ((parse_checkpoint(note).checkpoint.size, note) for note in publisher.archive.from_size(0))
    signed_size, note = next(notes, _NO_NOTE)
    if signed_size == 0:
        yield _line({"checkpoint": note})
        signed_size, note = next(notes, _NO_NOTE)
    for first in range(1, size + 1, _CHUNK):
        last = min(first + _CHUNK - 1, size)
        completed: dict[int, list[str]] = {}
        for seq, digest in session.execute(_COMPLETED, {"first": first, "last": last}):
            completed.setdefault(seq, []).append(bytes(digest).hex())
        for entry, opening in _chunk(session, select(LedgerEntry, LedgerPayload), first, last):
            nodes = json.dumps(completed.get(entry.seq, []))
            yield f'{{"entry":{entry_text(entry, opening)},"nodes":{nodes}}}\n'
            while signed_size <= entry.seq:
                yield _line({"checkpoint": note})
                signed_size, note = next(notes, _NO_NOTE)
    if contradicted and note:  # perhaps more was signed for than is there; else what is left was signed since
        yield _line({"checkpoint": note})
        yield from (_line({"checkpoint": left}) for _, left in notes)


def model_export(session: Session, publisher: CheckpointPublisher, model_id: str) -> Iterator[str]:
    """Lines of one model's entries, each with its proof. It cannot show that none is left out."""
    newest = publisher.publish(session)
    size = parse_checkpoint(newest).checkpoint.size
    yield _line({"format": MODEL_FORMAT, "model_id": model_id, "checkpoint": newest})
    after = 0
    while True:
        statement = entries_with_payloads().where(
            LedgerEntry.model_id == model_id, LedgerEntry.seq > after, LedgerEntry.seq <= size
        )
        entries = session.scalars(statement.order_by(LedgerEntry.seq).limit(_CHUNK)).all()
        if not entries:
            return
        proofs = inclusion_proofs(session, [entry.seq for entry in entries], size)
        for entry, proof in zip(entries, proofs, strict=True):
            steps = json.dumps([step.hex() for step in proof])
            yield f'{{"entry":{entry_text(entry, entry.opening)},"inclusion_proof":{steps}}}\n'
        after = entries[-1].seq
        session.expunge_all()


def _chunk(
    session: Session, statement: Select[LedgerEntry, LedgerPayload], first: int, last: int
) -> Iterator[Row[LedgerEntry, LedgerPayload]]:
    rows = session.execute(
        statement.outerjoin(LedgerPayload, LedgerPayload.seq == LedgerEntry.seq)
        .where(LedgerEntry.seq.between(first, last))
        .order_by(LedgerEntry.seq)
    ).all()
    yield from rows
    session.expunge_all()


def _line(value: dict[str, Any]) -> str:
    return f"{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n"
