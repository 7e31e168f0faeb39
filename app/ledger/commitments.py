"""What a leaf of the ledger's tree says, and how it commits to a payload that can be deleted.

A leaf is the RFC 8785 canonical JSON of fields that are not personal. The payload stays outside, in a row that can be
deleted; the leaf holds ``SHA-256(salt ‖ canonical payload)``. With 32 random bytes of salt gone too, nobody can find
the payload by guessing, and every root stays valid.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import rfc8785

SALT_BYTES = 32
COMMITMENT_BYTES = 32

_LARGEST_INTEGER = 2**53 - 1
# For strings and safe integers under ASCII names this is RFC 8785 already, and six times as fast as the general
# encoder: a verifier hashes a million leaves, and writing them is most of its time.
_FLAT_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


class NotCanonical(ValueError):
    """A value has no RFC 8785 form: NaN, an infinity, an integer beyond 2**53 - 1, broken Unicode, a foreign type."""


def canonical_json(value: JsonValue) -> bytes:
    """RFC 8785: one encoding for each value, so that its hash can be computed again anywhere.

    Raises:
        NotCanonical: the value has none.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise NotCanonical(f"no canonical JSON: {error}") from error


def new_salt() -> bytes:
    """32 random bytes; a fresh one for each payload, or equal payloads would show."""
    return secrets.token_bytes(SALT_BYTES)


def payload_commitment(salt: bytes, payload: Mapping[str, JsonValue]) -> bytes:
    """``SHA-256(salt ‖ canonical payload)``, 32 bytes. The salt's fixed length keeps the two parts apart.

    Raises:
        ValueError: the salt is not 32 bytes.
        NotCanonical: the payload has no canonical form.
    """
    return commitment_to(salt, canonical_json(payload))


def commitment_to(salt: bytes, canonical: bytes) -> bytes:
    """The same for a payload that is canonical JSON already. Raises ValueError when the salt is not 32 bytes."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    return hashlib.sha256(salt + canonical).digest()


def opens(commitment: bytes, salt: bytes, payload: Mapping[str, JsonValue]) -> bool:
    """Whether this salt and payload are the ones committed to. Raises as :func:`payload_commitment` does."""
    return hmac.compare_digest(commitment, payload_commitment(salt, payload))


@dataclass(frozen=True, slots=True)
class Leaf:
    """The fields of an entry that its leaf hash covers; absent ones are ``None`` and are written as ``null``.

    ``at`` is written in UTC with all six decimals, ``payload_commitment`` and ``artifact_sha256`` in lower-case hex.
    """

    seq: int
    at: datetime
    kind: str
    actor_ref: str
    payload_commitment: bytes
    dataset_id: str | None = None
    model_id: str | None = None
    job_id: str | None = None
    subject_ref: str | None = None
    parent_version: int | None = None
    result_version: int | None = None
    artifact_sha256: str | None = None


def leaf_bytes(leaf: Leaf) -> bytes:
    """What is hashed for an entry, as RFC 8785 canonical JSON.

    Raises:
        ValueError: the time has no zone, or the commitment is not 32 bytes.
        NotCanonical: a field has no canonical form.
    """
    if leaf.at.tzinfo is None:
        raise ValueError("the time of an entry needs a time zone")
    if len(leaf.payload_commitment) != COMMITMENT_BYTES:
        raise ValueError(f"a commitment has {COMMITMENT_BYTES} bytes, not {len(leaf.payload_commitment)}")
    numbers = (leaf.seq, leaf.parent_version, leaf.result_version)
    if any(number is not None and abs(number) > _LARGEST_INTEGER for number in numbers):
        raise NotCanonical("no canonical JSON: an integer exceeds 2**53 - 1")
    fields = {
        "seq": leaf.seq,
        "at": leaf.at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z",
        "kind": leaf.kind,
        "actor_ref": leaf.actor_ref,
        "subject_ref": leaf.subject_ref,
        "dataset_id": leaf.dataset_id,
        "model_id": leaf.model_id,
        "job_id": leaf.job_id,
        "parent_version": leaf.parent_version,
        "result_version": leaf.result_version,
        "artifact_sha256": leaf.artifact_sha256,
        "payload_commitment": leaf.payload_commitment.hex(),
    }
    try:
        return _FLAT_JSON.encode(fields).encode()
    except UnicodeEncodeError as error:
        raise NotCanonical(f"no canonical JSON: {error}") from error
