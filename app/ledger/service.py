"""Writing the history: an entry belongs to the transaction of the change it records.

Entries wait until their transaction is about to commit, and are written then, all at once. Numbers without gaps need
that one transaction writes at a time; this way each holds the others up for two statements and the commit only, and a
rollback uses up no number. The lock for it is the last that a transaction takes, so it takes part in no deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import Row, delete, event, select, text
from sqlalchemy.orm import Session

from app.artifacts.effects import on_rollback
from app.ledger.commitments import Leaf, canonical_json, commitment_to, leaf_bytes, new_salt
from app.ledger.kinds import LedgerKind
from app.ledger.merkle import Coordinate, appended, leaf_hash
from app.ledger.ranges import as_ranges
from app.tables import LedgerEntry, LedgerPayload

_WAITING = "app.ledger.waiting"
# Waits for the lock, then reads what the one before us committed; a function of the database, to go there only once.
_TIP = text("SELECT size, at, levels, positions, hashes FROM ledger_tip()")
# As two JSON texts: a dozen arrays would cost the client more than all the rest of an append.
_WRITE = text("""
    WITH given AS (
        SELECT * FROM json_to_recordset(CAST(:entries AS json)) AS given (
            seq bigint, kind text, actor_ref text, subject_ref text, dataset_id text, model_id text, job_id uuid,
            parent_version int, result_version int, artifact_sha256 text, payload_commitment text, salt text,
            payload text
        )
    ), entries AS (
        INSERT INTO ledger_entries (seq, at, kind, actor_ref, subject_ref, dataset_id, model_id, job_id, parent_version,
                                    result_version, artifact_sha256, payload_commitment)
        SELECT seq, :at, kind, actor_ref, subject_ref, dataset_id, model_id, job_id, parent_version,
               result_version, artifact_sha256, decode(payload_commitment, 'hex')
        FROM given
    ), payloads AS (
        INSERT INTO ledger_payloads (seq, salt, payload) SELECT seq, decode(salt, 'hex'), payload FROM given
    )
    INSERT INTO ledger_nodes (level, position, hash)
    SELECT level, position, decode(hash, 'hex')
    FROM json_to_recordset(CAST(:nodes AS json)) AS nodes (level smallint, position bigint, hash text)
""")


class LedgerDamaged(RuntimeError):
    """Stored nodes that the next entry needs are missing: someone has changed the ledger's tables."""


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """An entry without its number and time."""

    kind: str
    actor_ref: str
    subject_ref: str | None
    dataset_id: str | None
    model_id: str | None
    job_id: UUID | None
    parent_version: int | None
    result_version: int | None
    artifact_sha256: str | None
    payload_commitment: bytes
    salt: bytes
    payload: str

    def leaf(self, seq: int, at: datetime) -> Leaf:
        return Leaf(
            seq=seq,
            at=at,
            kind=self.kind,
            actor_ref=self.actor_ref,
            subject_ref=self.subject_ref,
            dataset_id=self.dataset_id,
            model_id=self.model_id,
            job_id=None if self.job_id is None else str(self.job_id),
            parent_version=self.parent_version,
            result_version=self.result_version,
            artifact_sha256=self.artifact_sha256,
            payload_commitment=self.payload_commitment,
        )

    def row(self, seq: int) -> dict[str, str | int | None]:
        """What is stored, bytes in hex."""
        return {
            "seq": seq,
            "kind": self.kind,
            "actor_ref": self.actor_ref,
            "subject_ref": self.subject_ref,
            "dataset_id": self.dataset_id,
            "model_id": self.model_id,
            "job_id": None if self.job_id is None else str(self.job_id),
            "parent_version": self.parent_version,
            "result_version": self.result_version,
            "artifact_sha256": self.artifact_sha256,
            "payload_commitment": self.payload_commitment.hex(),
            "salt": self.salt.hex(),
            "payload": self.payload,
        }


def append(
    session: Session,
    kind: LedgerKind,
    *,
    actor_ref: str,
    subject_ref: str | None = None,
    dataset_id: str | None = None,
    model_id: str | None = None,
    job_id: UUID | None = None,
    parent_version: int | None = None,
    result_version: int | None = None,
    artifact_sha256: str | None = None,
    payload: dict[str, Any] | None = None,
) -> None:
    """Add one entry to the history when the session's transaction commits; it has a number only then.

    Args:
        actor_ref: id of the API key that asked, ``worker``, or ``operator`` for the command line.
        subject_ref: random id of a subject, never a controller's name for one.
        payload: counts, digests, names of concepts; never keys of samples, subjects, reasons or other free text.

    Raises:
        NotCanonical: the payload has no canonical JSON.
    """
    salt, canonical = new_salt(), canonical_json(payload or {})
    draft = _Draft(
        kind=kind.value,
        actor_ref=actor_ref,
        subject_ref=subject_ref,
        dataset_id=dataset_id,
        model_id=model_id,
        job_id=job_id,
        parent_version=parent_version,
        result_version=result_version,
        artifact_sha256=artifact_sha256,
        payload_commitment=commitment_to(salt, canonical),
        salt=salt,
        payload=canonical.decode(),
    )
    if not session.in_transaction():
        session.begin()
    waiting: list[_Draft] = session.info.setdefault(_WAITING, [])
    waiting.append(draft)
    on_rollback(session, lambda: waiting.remove(draft))


def erase_payloads(session: Session, seqs: Iterable[int], *, actor_ref: str) -> int:
    """Delete what these entries say beyond their references, and record that it was deleted.

    Entries that record an erasure keep their payloads; without them a missing payload would be unexplained.

    Returns:
        How many payloads were there to delete.
    """
    erasable = select(LedgerEntry.seq).where(
        LedgerEntry.seq.in_(list(seqs)), LedgerEntry.kind != LedgerKind.LEDGER_PAYLOADS_ERASED.value
    )
    erased = session.scalars(
        delete(LedgerPayload).where(LedgerPayload.seq.in_(erasable)).returning(LedgerPayload.seq),
        execution_options={"synchronize_session": False},
    ).all()
    if erased:
        append(
            session,
            LedgerKind.LEDGER_PAYLOADS_ERASED,
            actor_ref=actor_ref,
            payload={"entries": [list(pair) for pair in as_ranges(erased)]},
        )
    return len(erased)


def lock(session: Session) -> None:
    """Nobody else appends until the session's transaction ends."""
    session.execute(_TIP)


@event.listens_for(Session, "before_commit", insert=True)
def _write_waiting(session: Session) -> None:
    if session.in_nested_transaction():  # a savepoint is released; the transaction goes on
        return
    waiting: list[_Draft] = session.info.pop(_WAITING, [])
    if waiting:
        session.flush()  # whatever it may wait for, it does before others wait for us
        _write(session, waiting)


def _write(session: Session, drafts: Sequence[_Draft]) -> None:
    tip = session.execute(_TIP).one()
    nodes = _peaks(tip)
    stored_before = len(nodes)

    def node(level: int, position: int) -> bytes:
        return nodes[level, position]

    try:
        for seq, draft in enumerate(drafts, start=tip.size + 1):
            nodes.update(appended(seq - 1, leaf_hash(leaf_bytes(draft.leaf(seq, tip.at))), node))
    except KeyError as error:
        raise LedgerDamaged(
            f"The ledger's node {error.args[0]} is missing; `modelmend ledger verify` an export."
        ) from error
    fresh = islice(nodes.items(), stored_before, None)
    session.execute(
        _WRITE,
        {
            "at": tip.at,
            "entries": json.dumps([draft.row(seq) for seq, draft in enumerate(drafts, start=tip.size + 1)]),
            "nodes": json.dumps(
                [{"level": level, "position": position, "hash": digest.hex()} for (level, position), digest in fresh]
            ),
        },
    )


def _peaks(tip: Row[Any]) -> dict[Coordinate, bytes]:
    return {
        (level, position): bytes(digest)
        for level, position, digest in zip(tip.levels or (), tip.positions or (), tip.hashes or (), strict=True)
    }
