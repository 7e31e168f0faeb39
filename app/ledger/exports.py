"""Lines of exports and receipts, read strictly: what a reader of the file sees is what its hashes cover.

A name that comes twice, a number that a double cannot hold as written, a member that no hash covers: each would let
two readers of one file see different things, so each is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple, NoReturn

from app.ledger.checkpoints import Checkpoint, VerifierKey, verify_checkpoint
from app.ledger.commitments import COMMITMENT_BYTES, SALT_BYTES, NotCanonical, canonical_json

LEDGER_FORMAT = "modelmend-ledger/1"
"""``format`` of the whole history's export."""
MODEL_FORMAT = "modelmend-receipts/1"
"""``format`` of one model's export."""
RECEIPT_FORMAT = "modelmend-receipt/1"
"""``format`` of a receipt."""

MAX_LINE_BYTES = 4 << 20
"""Longer lines are refused, so that a file cannot exhaust the memory of who verifies it."""

LEAF_FIELDS = (
    "seq",
    "at",
    "kind",
    "actor_ref",
    "subject_ref",
    "dataset_id",
    "model_id",
    "job_id",
    "parent_version",
    "result_version",
    "artifact_sha256",
    "payload_commitment",
)
"""What a leaf hash covers."""
ENTRY_FIELDS = (*LEAF_FIELDS, "payload", "payload_salt")
"""All fields of an entry; the last two are ``null`` together, once erased."""

LARGEST_INTEGER = 2**53 - 1
"""The largest integer that every reader of JSON understands alike (RFC 7493). Beyond it numbers are doubles."""

_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "seq": (int,),
    "at": (str,),
    "kind": (str,),
    "actor_ref": (str,),
    "subject_ref": (str, _NONE),
    "dataset_id": (str, _NONE),
    "model_id": (str, _NONE),
    "job_id": (str, _NONE),
    "parent_version": (int, _NONE),
    "result_version": (int, _NONE),
    "artifact_sha256": (str, _NONE),
    "payload_commitment": (str,),
    "payload": (dict, _NONE),
    "payload_salt": (str, _NONE),
}
_VALUES = itemgetter(*ENTRY_FIELDS)
_AT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z")
_HASH = re.compile(r"[0-9a-f]{64}")
# RFC 8785 sorts names by UTF-16 code units, Python by code points: they differ only where one is beyond 16 bits.
_BEYOND_16_BITS = re.compile("[\U00010000-\U0010ffff]")
# Without floats and such characters this is RFC 8785, at a tenth of the general encoder's time.
_quoted = json.encoder.encode_basestring
_FLAT = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))

JsonObject = dict[str, Any]


class Refused(ValueError):
    """What was read is not of the form, or does not hash to what it should; the message is a clause that says why."""


class EntryRead(NamedTuple):
    """An entry that is of the form and, if it still has its payload, opens its commitment."""

    seq: int
    at: str
    """In the canonical form, whose order is that of time."""
    kind: str
    model_id: str | None
    payload: JsonObject | None
    leaf_hash: bytes


class Reader:
    """Reads one value after another; :meth:`entry` belongs to the value that :meth:`value` read last."""

    def __init__(self) -> None:
        self._floats = False  # whether the value holds one that the fast encoder writes differently
        self._decode = json.JSONDecoder(
            object_pairs_hook=_members, parse_int=self._integer, parse_float=self._float, parse_constant=_constant
        ).decode

    def value(self, text: bytes, *, limit: int = MAX_LINE_BYTES) -> JsonObject:
        """The JSON object in ``text``.

        Raises:
            Refused: it is longer than ``limit`` bytes, or not one object in UTF-8 with names and numbers that every
                reader understands alike.
        """
        if len(text) > limit:
            raise Refused(f"is longer than {limit} bytes")
        self._floats = False
        try:
            value = self._decode(text.decode("utf-8"))
        except Refused:
            raise
        except (ValueError, RecursionError) as error:
            raise Refused("is not JSON in UTF-8") from error
        if type(value) is not dict:
            raise Refused("is not a JSON object")
        return value

    def entry(self, value: object) -> EntryRead:
        """Check an entry and hash it.

        Raises:
            Refused: its form is not exactly that of an entry, or salt and payload do not open its commitment.
        """
        if type(value) is not dict or len(value) != len(ENTRY_FIELDS):
            raise Refused(_wrong_members("an entry", value, ENTRY_FIELDS))
        try:
            values = _VALUES(value)
        except KeyError:
            raise Refused(_wrong_members("an entry", value, ENTRY_FIELDS)) from None
        wrong = _wrongly_typed(tuple(map(type, values)))
        if wrong is not None:
            raise Refused(f"has a {wrong} of the wrong type")
        seq, at, kind, *_, model_id, _, _, _, _, commitment, payload, salt = values
        _check_time(at)
        if not _HASH.fullmatch(commitment):
            raise Refused(f"has a commitment that is not {COMMITMENT_BYTES} bytes in lower-case hex")
        if payload is None:
            if salt is not None:
                raise Refused("has a salt without a payload")
        elif salt is None or not _HASH.fullmatch(salt):
            raise Refused(f"has a payload whose salt is not {SALT_BYTES} bytes in lower-case hex")
        elif hashlib.sha256(bytes.fromhex(salt) + self._canonical(payload)).hexdigest() != commitment:
            raise Refused("has a payload or a salt that is not the one committed to")
        try:
            leaf = _leaf(*values).encode("utf-8")
        except UnicodeEncodeError as error:
            raise Refused("holds half a surrogate pair") from error
        return EntryRead(seq, at, kind, model_id, payload, hashlib.sha256(b"\x00" + leaf).digest())

    def _canonical(self, payload: JsonObject) -> bytes:
        try:
            if not self._floats:
                text = _FLAT.encode(payload)
                if text.isascii() or not _BEYOND_16_BITS.search(text):
                    return text.encode("utf-8")
            return canonical_json(payload)
        except (NotCanonical, UnicodeEncodeError, RecursionError) as error:
            raise Refused("has a payload without a canonical form") from error

    def _integer(self, text: str) -> int | float:
        # Sixteen digits and a sign hold every safe integer. RFC 8785 writes a double up to 1e21 without exponent.
        number = int(text) if len(text) <= 17 else LARGEST_INTEGER + 1
        return number if -LARGEST_INTEGER <= number <= LARGEST_INTEGER else self._float(text)

    def _float(self, text: str) -> float:
        number = float(text)
        # Otherwise it is infinite, or has digits that no hash covers.
        if repr(number) != text and Decimal(text) != Decimal(repr(number)):
            raise Refused("holds a number that a double does not hold as it is written")
        # Here Python writes a double as RFC 8785 does: with digits on both sides of a point.
        self._floats = self._floats or not 1e-4 <= abs(number) < 1e15 or number.is_integer()
        return number


def _leaf(
    seq: int,
    at: str,
    kind: str,
    actor_ref: str,
    subject_ref: str | None,
    dataset_id: str | None,
    model_id: str | None,
    job_id: str | None,
    parent_version: int | None,
    result_version: int | None,
    artifact_sha256: str | None,
    payload_commitment: str,
    *_: object,
) -> str:
    """RFC 8785 of the fields that a leaf hash covers, names in order: ``commitments.leaf_bytes`` from what was read.

    A million of them are a fifth of a verifier's work, and would be half of it by an encoder that has to sort.
    """
    return (
        f'{{"actor_ref":{_quoted(actor_ref)},"artifact_sha256":{_or_null(artifact_sha256)},"at":"{at}"'
        f',"dataset_id":{_or_null(dataset_id)},"job_id":{_or_null(job_id)},"kind":{_quoted(kind)}'
        f',"model_id":{_or_null(model_id)},"parent_version":{"null" if parent_version is None else parent_version}'
        f',"payload_commitment":"{payload_commitment}"'
        f',"result_version":{"null" if result_version is None else result_version},"seq":{seq}'
        f',"subject_ref":{_or_null(subject_ref)}}}'
    )


def _or_null(text: str | None) -> str:
    return "null" if text is None else _quoted(text)


def required(value: object, what: str, *names: str) -> tuple[Any, ...]:
    """The members of the object ``value`` called ``names``, which are all it has.

    Raises:
        Refused: it is no object, a member is missing, or there is another.
    """
    if type(value) is not dict:
        raise Refused(_wrong_members(what, value, names))
    try:
        members = tuple([value[name] for name in names])
    except KeyError:
        members = ()
    if len(members) != len(value) or not members:
        raise Refused(_wrong_members(what, value, names))
    return members


def signed_checkpoint(note: object, keys: list[VerifierKey]) -> Checkpoint:
    """The checkpoint in a signed note, believed because one of ``keys``, which all have the log's name, signed it.

    Raises:
        Refused: it is not of the form, of another log, or not signed by a known key.
    """
    if type(note) is not str:
        raise Refused("is not a signed note")
    try:
        return verify_checkpoint(note, keys, origin=keys[0].name)
    except ValueError as error:
        raise Refused(f"is not to be trusted: {error}") from error


def hashes(values: object) -> list[bytes]:
    """The 32-byte hashes in a list of lower-case hex.

    Raises:
        Refused: it is not such a list.
    """
    if type(values) is not list or not all(type(value) is str and _HASH.fullmatch(value) for value in values):
        raise Refused("has a proof that is not a list of hashes")
    return [bytes.fromhex(value) for value in values]


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file. One that is too long comes in pieces longer than ``MAX_LINE_BYTES``, never whole."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def _members(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise Refused("holds a name twice in one object")
    return members


def _constant(_: str) -> NoReturn:
    raise Refused("is not JSON: NaN and Infinity are none")


@lru_cache(maxsize=1024)
def _wrongly_typed(types: tuple[type, ...]) -> str | None:
    return next((name for name, given in zip(ENTRY_FIELDS, types, strict=True) if given not in _TYPES[name]), None)


@lru_cache(maxsize=64)
def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _check_time(at: str) -> None:
    match = _AT.fullmatch(at)
    if match is None or not _is_date(match[1]):
        raise Refused("has a time that is not UTC with six decimals, as 2026-01-31T12:00:00.000000Z")


def _wrong_members(what: str, value: object, names: tuple[str, ...]) -> str:
    if type(value) is not dict:
        return f"is not {what}: it is no object"
    missing = [name for name in names if name not in value]
    if missing:
        return f"is not {what}: {missing[0]} is missing"
    return f"is not {what}: it has members that no hash covers"
