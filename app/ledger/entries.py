"""An entry as it is written everywhere: the fields of its leaf, and what opens its commitment."""

from __future__ import annotations

import json
from typing import Any

from app.kit.schemas import AnswerBody
from app.ledger.commitments import Leaf, leaf_bytes
from app.tables import LedgerEntry, LedgerPayload


class LedgerEntryBody(AnswerBody):
    """One event. The RFC 8785 form of all fields but the last two is the leaf of the Merkle tree.

    ``actor_ref`` is the id of an API key, ``worker``, or ``operator``. Payload and salt are null once erased.
    """

    seq: int
    at: str
    kind: str
    actor_ref: str
    subject_ref: str | None
    dataset_id: str | None
    model_id: str | None
    job_id: str | None
    parent_version: int | None
    result_version: int | None
    artifact_sha256: str | None
    payload_commitment: str
    payload: dict[str, Any] | None
    payload_salt: str | None

    @classmethod
    def of(cls, entry: LedgerEntry) -> LedgerEntryBody:
        """``entry.opening`` must have been loaded."""
        return cls(**json.loads(entry_text(entry, entry.opening)))


def entry_text(entry: LedgerEntry, opening: LedgerPayload | None) -> str:
    """The entry as JSON. The payload is written as it was hashed."""
    payload, salt = ("null", "null") if opening is None else (opening.payload, f'"{opening.salt.hex()}"')
    return f'{leaf_bytes(leaf_of(entry)).decode()[:-1]},"payload":{payload},"payload_salt":{salt}}}'


def leaf_of(entry: LedgerEntry) -> Leaf:
    """What the tree hashes of a stored entry."""
    return Leaf(
        seq=entry.seq,
        at=entry.at,
        kind=entry.kind,
        actor_ref=entry.actor_ref,
        subject_ref=entry.subject_ref,
        dataset_id=entry.dataset_id,
        model_id=entry.model_id,
        job_id=None if entry.job_id is None else str(entry.job_id),
        parent_version=entry.parent_version,
        result_version=entry.result_version,
        artifact_sha256=entry.artifact_sha256,
        payload_commitment=entry.payload_commitment,
    )
