"""Holding exports and receipts to the checkpoints that were signed: offline, from the data alone.

Everything is hashed again. Nothing that an export says about itself is believed: not its size, not its keys, not its
stored hashes. What is believed are the keys given, and outside checkpoints: those that were kept where whoever could
rewrite the history could not reach them. With the log's own key a history can be rewritten so that only they tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.ledger import exports
from app.ledger.checkpoints import Checkpoint, VerifierKey
from app.ledger.exports import EntryRead, JsonObject, Reader, Refused
from app.ledger.findings import OutsideCheckpoint, TamperingFound, UnreadableExport, Verified
from app.ledger.history import verify_history
from app.ledger.merkle import InvalidProof, verify_inclusion

MAX_RECEIPT_BYTES = 16 << 20
"""A receipt is one JSON value, read whole; larger ones are refused."""

__all__ = [
    "MAX_RECEIPT_BYTES",
    "OutsideCheckpoint",
    "TamperingFound",
    "UnreadableExport",
    "Verified",
    "outside_checkpoint",
    "trusted",
    "verify",
]


def verify(lines: Iterable[bytes], keys: Sequence[VerifierKey], outside: Iterable[OutsideCheckpoint] = ()) -> Verified:
    """Verify an export of the whole history or of a model, or a receipt: its first line says which it is.

    A model's export and a receipt show that their entries are in the history, not that none was left out of them.

    Args:
        lines: as ``exports.lines_of`` reads them, so that none is much longer than allowed.
        keys: present and past verifier keys of the log, from a source that is not the log.
        outside: checkpoints kept elsewhere, signed by the same keys.

    Raises:
        TamperingFound: it is not what was signed; names the first bad entry, or the range that it lies in.
        UnreadableExport: it is none of these.
        ValueError: the keys are not those of one log.
    """
    known, kept, reader, rest = trusted(keys), list(outside), Reader(), iter(lines)
    opening = _opening(rest, reader)
    form = opening.get("format")
    try:
        if form == exports.LEDGER_FORMAT:
            return verify_history(opening, rest, reader, known, kept)
        if form == exports.MODEL_FORMAT:
            return _verify_model(opening, rest, reader, known, kept)
        if form == exports.RECEIPT_FORMAT:
            return _verify_receipt(opening, rest, reader, known, kept)
    except Refused as error:
        raise UnreadableExport(f"The first line {error}.") from error
    raise UnreadableExport("The first line names no format that is known here.")


def outside_checkpoint(content: bytes, source: str, keys: Sequence[VerifierKey]) -> OutsideCheckpoint:
    """Read a signed note, or a receipt or a model's export for the checkpoint in it.

    Raises:
        UnreadableExport: it holds none that one of the keys signed.
        ValueError: the keys are not those of one log.
    """
    known = trusted(keys)
    try:
        if content.lstrip().startswith(b"{"):
            note = _opening(iter(content.splitlines(keepends=True)), Reader()).get("checkpoint")
        else:
            note = content.decode("utf-8")
        return OutsideCheckpoint(exports.signed_checkpoint(note, known), source)
    except UnicodeDecodeError as error:
        raise UnreadableExport(f"{source} is no checkpoint, receipt or export.") from error
    except Refused as error:
        raise UnreadableExport(f"{source} {error}.") from error


def trusted(keys: Sequence[VerifierKey]) -> list[VerifierKey]:
    """The keys, if they are of one log: their common name is its origin.

    Raises:
        ValueError: there is none, or they have different names.
    """
    if len({key.name for key in keys}) != 1:
        raise ValueError("the keys of one log are needed, which all have its name")
    return list(keys)


def _opening(lines: Iterator[bytes], reader: Reader) -> JsonObject:
    """The object in the first line; in all lines together, if they are a receipt laid out for people."""
    first = next(lines, b"")
    try:
        return reader.value(first)
    except Refused as refusal:
        whole = bytearray(first)
        while len(whole) <= MAX_RECEIPT_BYTES and (line := next(lines, b"")):
            whole += line
        try:
            value = reader.value(bytes(whole), limit=MAX_RECEIPT_BYTES)
            if value.get("format") == exports.RECEIPT_FORMAT:
                return value
        except Refused:
            pass
        raise UnreadableExport(f"The first line {refusal}.") from refusal


def _verify_receipt(
    receipt: JsonObject,
    rest: Iterator[bytes],
    reader: Reader,
    keys: list[VerifierKey],
    outside: list[OutsideCheckpoint],
) -> Verified:
    _, note, items = exports.required(receipt, "a receipt", "format", "checkpoint", "entries")
    if any(line.strip() for line in rest):
        raise Refused("is a receipt, but something follows it")
    if type(items) is not list or not items:
        raise Refused("is a receipt of nothing")
    checkpoint = _checkpoint_of(note, keys)
    erased = 0
    for place, item in enumerate(items, 1):
        try:
            value, proof = exports.required(item, "an entry with its proof", "entry", "inclusion_proof")
        except Refused as error:
            raise TamperingFound(None, None, f"Entry no. {place} of the receipt {error}.") from error
        entry = _included(value, proof, checkpoint, reader, f"Entry no. {place} of the receipt")
        erased += entry.payload is None
    compared = _compared(checkpoint, outside)
    return Verified("receipt", checkpoint.origin, checkpoint.size, checkpoint.root, len(items), 1, compared, erased)


def _verify_model(
    header: JsonObject,
    lines: Iterator[bytes],
    reader: Reader,
    keys: list[VerifierKey],
    outside: list[OutsideCheckpoint],
) -> Verified:
    _, model_id, note = exports.required(header, "the first line of an export", "format", "model_id", "checkpoint")
    if type(model_id) is not str:
        raise Refused("names no model")
    checkpoint = _checkpoint_of(note, keys)
    count = erased = seq = 0
    for number, line in enumerate(lines, 2):
        try:
            value, proof = exports.required(reader.value(line), "a line of an export", "entry", "inclusion_proof")
        except Refused as error:
            raise TamperingFound(None, None, f"Line {number}, after entry {seq}, {error}.") from error
        entry = _included(value, proof, checkpoint, reader, f"The entry in line {number}")
        if entry.seq <= seq:
            raise TamperingFound(entry.seq, seq, f"After entry {seq} comes entry {entry.seq}, out of order.")
        if entry.model_id != model_id:
            raise TamperingFound(entry.seq, entry.seq, f"Entry {entry.seq} is not one of the model {model_id}.")
        count, seq, erased = count + 1, entry.seq, erased + (entry.payload is None)
    compared = _compared(checkpoint, outside)
    return Verified(
        "history of a model", checkpoint.origin, checkpoint.size, checkpoint.root, count, 1, compared, erased
    )


def _checkpoint_of(note: object, keys: list[VerifierKey]) -> Checkpoint:
    try:
        return exports.signed_checkpoint(note, keys)
    except Refused as error:
        raise TamperingFound(None, None, f"The checkpoint {error}.") from error


def _included(value: object, proof: object, checkpoint: Checkpoint, reader: Reader, place: str) -> EntryRead:
    """The entry, if the checkpoint's tree holds it where its number says."""
    claimed = value.get("seq") if type(value) is dict else None
    seq = claimed if type(claimed) is int else None
    try:
        entry = reader.entry(value)
        verify_inclusion(entry.seq - 1, checkpoint.size, entry.leaf_hash, exports.hashes(proof), checkpoint.root)
    except Refused as error:
        raise TamperingFound(seq, seq, f"{place if seq is None else f'Entry {seq}'} {error}.") from error
    except InvalidProof as error:
        raise TamperingFound(
            seq, seq, f"Entry {seq} is not what the checkpoint's tree of {checkpoint.size} entries holds: {error}."
        ) from error
    return entry


def _compared(checkpoint: Checkpoint, outside: list[OutsideCheckpoint]) -> int:
    same = [kept for kept in outside if kept.checkpoint.size == checkpoint.size]
    for kept in same:
        if kept.checkpoint.root != checkpoint.root:
            raise TamperingFound(
                min(1, checkpoint.size) or None,
                checkpoint.size or None,
                f"{kept.source} holds another history of the first {checkpoint.size} entries; the log's key has "
                "signed both.",
            )
    return len(same)
