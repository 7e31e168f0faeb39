"""What verifies, in all its forms, and what is refused before anything can be said about the history."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import exports, merkle
from app.ledger.checkpoints import parse_checkpoint
from app.ledger.commitments import canonical_json
from app.ledger.exports import Reader, Refused, lines_of
from app.ledger.findings import TamperingFound, UnreadableExport
from app.ledger.verification import MAX_RECEIPT_BYTES, outside_checkpoint, verify
from tests.app.ledger.logs import Log, as_lines, leaf_hash_of, signing_key, typical_log

LOG = typical_log()
KEYS = [LOG.keys[0].verifier]
LINES = as_lines(LOG.export())


def test_a_whole_history() -> None:
    verified = verify(LINES, KEYS)
    assert verified.document == "history"
    assert verified.origin == "log.example"
    assert (verified.entries, verified.size, verified.checkpoints) == (21, 21, 7)
    assert (verified.outside_checkpoints, verified.erased_payloads) == (0, 3)
    assert verified.root == merkle.root(21, lambda *at: LOG.nodes[at])


@pytest.mark.parametrize("size", range(12))
def test_histories_of_all_small_sizes(size: int) -> None:
    log = Log()
    for _ in range(size):
        log.append()
    verified = verify(as_lines(log.export()), KEYS)
    assert (verified.entries, verified.checkpoints) == (size, 1)


def test_outside_checkpoints_are_counted() -> None:
    log = LOG.copy()
    notes = [log.note(size) for size in (0, 3, 3, 21, 20)]
    log.append()
    outside = [outside_checkpoint(note.encode(), "kept", KEYS) for note in notes]
    assert verify(as_lines(log.export()), KEYS, outside).outside_checkpoints == 5


def test_checkpoints_of_keys_that_rotate() -> None:
    old, new = signing_key(1), signing_key(2)
    log = Log(old)
    log.append()
    log.publish()
    log.keys = (old, new)
    log.append()
    log.publish()
    log.keys = (new,)
    log.append()
    log.publish()
    lines = as_lines(log.export())
    assert verify(lines, [old.verifier, new.verifier]).checkpoints == 3
    for key, first, last in ((old, 3, 3), (new, 1, 1)):
        with pytest.raises(TamperingFound, match="no known key") as found:
            verify(lines, [key.verifier])
        assert (found.value.first_seq, found.value.last_seq) == (first, last)


def test_a_checkpoint_may_come_twice() -> None:
    lines = LOG.export()
    assert verify(as_lines([*lines, lines[-1]]), KEYS).checkpoints == 8


def test_a_receipt_on_one_line_and_laid_out_for_people() -> None:
    receipt = LOG.receipt(4, 2, 21)
    for text in (json.dumps(receipt), json.dumps(receipt) + "\n\n", json.dumps(receipt, indent=2)):
        verified = verify(lines_of(io.BytesIO(text.encode())), KEYS)
        assert (verified.document, verified.entries, verified.size) == ("receipt", 3, 21)
        assert (verified.checkpoints, verified.erased_payloads) == (1, 1)


def test_the_history_of_a_model() -> None:
    verified = verify(as_lines(LOG.model_export()), KEYS)
    assert (verified.document, verified.size) == ("history of a model", 21)
    assert (verified.entries, verified.erased_payloads) == (8, 1)


def test_a_receipt_and_a_model_are_held_to_outside_checkpoints_of_their_size() -> None:
    same = outside_checkpoint(LOG.note().encode(), "same", KEYS)
    other = outside_checkpoint(LOG.note(20).encode(), "other", KEYS)
    twin = LOG.copy()
    twin.entries[0]["actor_ref"] = "nobody"
    twin.rehash()
    contradicting = outside_checkpoint(twin.note().encode(), "the auditor's copy", KEYS)
    for lines in (as_lines([LOG.receipt(4)]), as_lines(LOG.model_export())):
        assert verify(lines, KEYS, [same, other]).outside_checkpoints == 1
        with pytest.raises(TamperingFound, match=r"the auditor's copy.*signed both") as found:
            verify(lines, KEYS, [contradicting])
        assert (found.value.first_seq, found.value.last_seq) == (1, 21)


@pytest.mark.parametrize(
    "content",
    [
        LOG.note().encode(),
        as_lines([LOG.receipt(4)])[0],
        json.dumps(LOG.receipt(4), indent=1).encode(),
        b"".join(as_lines(LOG.model_export())),
    ],
)
def test_where_outside_checkpoints_come_from(content: bytes) -> None:
    kept = outside_checkpoint(content, "kept", KEYS)
    assert kept.checkpoint == parse_checkpoint(LOG.note()).checkpoint


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LOG.note(None, signing_key(2)).encode(), "kept is not to be trusted: no known key"),
        (LOG.note(None, signing_key(1, "other.example")).encode(), "a checkpoint of other.example"),
        (LOG.note()[:-4].encode(), "is not to be trusted"),
        (b"\xff", "kept is no checkpoint"),
        (b"", "kept is not to be trusted"),
        (b"".join(LINES), "kept is not a signed note"),
        (b'{"checkpoint": 1}', "kept is not a signed note"),
        (b"{", "not JSON"),
    ],
)
def test_outside_checkpoints_that_prove_nothing(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableExport, match=reason):
        outside_checkpoint(content, "kept", KEYS)


def header(**changes: Any) -> bytes:
    return as_lines([LOG.export()[0] | changes])[0]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "not JSON"),
        (b"\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b"PK\x03\x04\xff", "not JSON in UTF-8"),
        (b"{}\n", "no format"),
        (b'{"format": "modelmend-ledger/2"}\n', "no format"),
        (header(origin="other.example"), "another log than log.example"),
        (header(size=True), "no size"),
        (header(size=-1), "no size"),
        (header(keys="none"), "no list of keys"),
        (header(keys=["log.example+00000000+AAAA"]), "a key that is none"),
        (header(keys=[str(signing_key(1, "other.example").verifier)]), "a key that is none"),
        (header(comment="hello"), "members that no hash covers"),
        (header()[:-2] + b',"size":3}\n', "a name twice"),
        (b'{"format":"modelmend-receipts/1","model_id":1,"checkpoint":""}\n', "no model"),
        (b'{"format":"modelmend-receipt/1","checkpoint":"","entries":[]}\n', "receipt of nothing"),
        (b'{"format":"modelmend-receipt/1","checkpoint":""}\n', "entries is missing"),
        (as_lines([LOG.receipt(1)])[0] + b"{}\n", "something follows"),
        (b"[" * 200_000, "not JSON"),
        (b'"' + b"x" * (MAX_RECEIPT_BYTES + 1) + b'"', "longer than"),
    ],
)
def test_what_is_no_export(first: bytes, reason: str) -> None:
    with pytest.raises(UnreadableExport, match=reason):
        verify(lines_of(io.BytesIO(first)), KEYS)


def test_keys_must_be_those_of_one_log() -> None:
    for keys in ([], [*KEYS, signing_key(1, "other.example").verifier]):
        with pytest.raises(ValueError, match="the keys of one log"):
            verify(LINES, keys)


def entry(**changes: Any) -> Any:
    return {**LOG.entries[3], **changes}


def without(name: str) -> Any:
    return {key: value for key, value in LOG.entries[3].items() if key != name}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "it is no object"),
        ([], "it is no object"),
        ({}, "seq is missing"),
        *((without(name), f"{name} is missing") for name in exports.ENTRY_FIELDS),
        (entry(note="hello"), "members that no hash covers"),
        ({**without("at"), "When": 1}, "at is missing"),
        *((entry(**{name: []}), f"a {name} of the wrong type") for name in exports.ENTRY_FIELDS),
        *((entry(**{name: True}), f"a {name} of the wrong type") for name in ("seq", "parent_version")),
        (entry(seq=4.0), "a seq of the wrong type"),
        (entry(kind=None), "a kind of the wrong type"),
        *(
            (entry(at=at), "a time that is not UTC with six decimals")
            for at in (
                "2026-11-28T01:02:03Z",
                "2026-11-28T01:02:03.000004+00:00",
                "2026-11-28 01:02:03.000004Z",
                "2026-11-28T01:02:03.0000040Z",
                "2026-11-28T24:00:00.000000Z",
                "2026-11-28T01:02:60.000000Z",
                "2026-02-29T01:02:03.000004Z",
                "0000-11-28T01:02:03.000004Z",
                "2026-11-28T01:02:03.00000٤Z",
                "2026-11-28T01:02:03.000004Z\n",
            )
        ),
        (entry(payload_commitment="AB" * 32), "a commitment that is not 32 bytes"),
        (entry(payload_commitment="ab" * 31), "a commitment that is not 32 bytes"),
        (entry(payload=None), "a salt without a payload"),
        (entry(payload_salt=None), "a payload whose salt"),
        (entry(payload_salt="AB" * 32), "a payload whose salt"),
        (entry(payload_salt="00" * 32), "not the one committed to"),
        (entry(payload={}), "not the one committed to"),
        (entry(payload={"x": "\ud800"}), "without a canonical form"),
        (entry(actor_ref="\ud800"), "half a surrogate pair"),
    ],
)
def test_what_is_no_entry(value: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Reader().entry(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":1}', "a name twice"),
        (b'{"a":{"b":1,"\\u0062":2}}', "a name twice"),
        (b'{"a":9007199254740993}', "a double does not hold"),
        (b'{"a":-9007199254740993}', "a double does not hold"),
        (b'{"a":100000000000000000001}', "a double does not hold"),
        (b'{"a":' + b"1" * 5000 + b"}", "a double does not hold"),
        (b'{"a":1e999}', "a double does not hold"),
        (b'{"a":0.30000000000000005}', "a double does not hold"),
        (b'{"a":0.1000000000000000055}', "a double does not hold"),
        (b'{"a":1e-999}', "a double does not hold"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "NaN"),
        (b'{"a":"\xff"}', "UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "not JSON"),
        (b'{"a":1}{', "not JSON"),
        (b'{"a":"' + b"x" * exports.MAX_LINE_BYTES + b'"}', "longer than"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
    ],
)
def test_what_different_readers_would_understand_differently(text: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Reader().value(text)


@pytest.mark.parametrize(
    "number",
    ["9007199254740991", "-9007199254740991", "0.1", "1.0", "1e-07", "0.0000001", "1e22", "100000000000000000000"],
)
def test_numbers_that_all_readers_understand(number: str) -> None:
    assert Reader().value(f'{{"a":{number}}}'.encode()) == {"a": json.loads(number)}


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
NAMES = st.sampled_from(["a", "b", "B", "\u20ac", "\U0001f600", "\ufb33", "", "\x7f", "\x1f", '"\\/'])
NUMBERS = st.one_of(
    st.integers(-exports.LARGEST_INTEGER, exports.LARGEST_INTEGER),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-320, 308).map(lambda power: float(f"1e{power}")),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(NAMES | TEXTS, VALUES, max_size=5), TEXTS, TEXTS, st.booleans())
def test_the_fast_encoder_hashes_as_the_general_one(payload: Any, actor: str, model: str, rfc: bool) -> None:
    written = Log().append(payload=payload, actor_ref=actor, model_id=model)
    reader = Reader()
    canonical = (
        canonical_json({"entry": written}) if rfc else json.dumps({"entry": written}, ensure_ascii=False).encode()
    )
    read = reader.entry(reader.value(canonical)["entry"])
    assert read.leaf_hash == leaf_hash_of(written)
    assert read.payload == payload


def test_a_line_is_never_read_whole_if_it_is_too_long() -> None:
    file = io.BytesIO(b"x" * (3 * exports.MAX_LINE_BYTES))
    assert max(map(len, lines_of(file))) == exports.MAX_LINE_BYTES + 1
