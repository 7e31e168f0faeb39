from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.commitments import (
    JsonValue,
    Leaf,
    NotCanonical,
    canonical_json,
    leaf_bytes,
    new_salt,
    opens,
    payload_commitment,
)

SALT = bytes(range(32))
LEAF = Leaf(
    seq=7,
    at=datetime(2026, 3, 4, 5, 6, 7, 80, tzinfo=UTC),
    kind="edit.succeeded",
    actor_ref="worker",
    payload_commitment=bytes(32),
    dataset_id="digits",
    model_id="m",
    job_id="0f0e",
    subject_ref="s1",
    parent_version=1,
    result_version=2,
    artifact_sha256="ab" * 32,
)


def test_canonical_json_of_rfc_8785() -> None:
    # Sections 3.2.2 and 3.2.3: shortest numbers, keys in the order of UTF-16 code units.
    value: JsonValue = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "literals": [None, True, False],
    }
    expected = '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    assert canonical_json(value) == expected.encode()
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    order = list(json.loads(canonical_json(dict.fromkeys(keys, 0))))
    assert order == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud800", {"\ud800": 1}, {1: 2}, b"x", {1, 2}])
def test_values_without_canonical_form(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical_json({"v": value})  # type: ignore[dict-item]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4)


@given(PAYLOADS)
def test_canonical_json_reads_back_and_forgets_the_order_of_keys(payload: dict[str, JsonValue]) -> None:
    encoded = canonical_json(payload)
    assert json.loads(encoded) == payload
    assert canonical_json(dict(reversed(payload.items()))) == encoded


def test_the_commitment_is_the_hash_of_salt_and_payload() -> None:
    commitment = payload_commitment(SALT, {"rows": 3, "concept": "loop"})
    assert commitment == hashlib.sha256(SALT + b'{"concept":"loop","rows":3}').digest()
    assert opens(commitment, SALT, {"concept": "loop", "rows": 3})


@given(PAYLOADS, PAYLOADS, st.integers(0, 255))
def test_a_commitment_opens_to_nothing_else(
    payload: dict[str, JsonValue], other: dict[str, JsonValue], bit: int
) -> None:
    commitment = payload_commitment(SALT, payload)
    assert opens(commitment, SALT, other) is (canonical_json(other) == canonical_json(payload))
    salt = bytearray(SALT)
    salt[bit // 8] ^= 1 << bit % 8
    assert not opens(commitment, bytes(salt), payload)


def test_salts_are_fresh_and_whole() -> None:
    assert len({new_salt() for _ in range(100)}) == 100
    assert len(new_salt()) == 32
    with pytest.raises(ValueError, match="32 bytes"):
        payload_commitment(SALT[:-1], {})


def test_the_bytes_of_a_leaf() -> None:
    assert leaf_bytes(LEAF) == (
        b'{"actor_ref":"worker","artifact_sha256":"' + b"ab" * 32 + b'","at":"2026-03-04T05:06:07.000080Z",'
        b'"dataset_id":"digits","job_id":"0f0e","kind":"edit.succeeded","model_id":"m","parent_version":1,'
        b'"payload_commitment":"' + b"00" * 32 + b'","result_version":2,"seq":7,"subject_ref":"s1"}'
    )
    bare = Leaf(1, LEAF.at, "api_key.created", "operator", bytes(32))
    assert json.loads(leaf_bytes(bare))["model_id"] is None


STRINGS = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.none() | st.integers(-(2**53) + 1, 2**53 - 1)


@given(NUMBERS, NUMBERS, st.lists(STRINGS, min_size=7, max_size=7), st.datetimes(), st.binary(min_size=32, max_size=32))
def test_a_leaf_is_canonical(
    parent: int | None, result: int | None, strings: list[str | None], at: datetime, commitment: bytes
) -> None:
    kind, actor, dataset, model, job, subject, artifact = strings
    leaf = Leaf(
        seq=result or 0,
        at=at.replace(tzinfo=UTC),
        kind=kind or "",
        actor_ref=actor or "",
        payload_commitment=commitment,
        dataset_id=dataset,
        model_id=model,
        job_id=job,
        subject_ref=subject,
        parent_version=parent,
        result_version=result,
        artifact_sha256=artifact,
    )
    written = leaf_bytes(leaf)
    assert written == canonical_json(json.loads(written))
    read = json.loads(written)
    assert read["at"] == f"{at.isoformat(timespec='microseconds')}Z"
    assert read["payload_commitment"] == commitment.hex()
    plain = {f.name for f in fields(Leaf)} - {"at", "payload_commitment"}
    assert {name: read[name] for name in plain} == {name: getattr(leaf, name) for name in plain}


@pytest.mark.parametrize("change", [{"seq": 2**53}, {"parent_version": -(2**53)}, {"actor_ref": "\ud800"}])
def test_a_leaf_without_canonical_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical):
        leaf_bytes(replace(LEAF, **change))


def test_every_field_is_covered() -> None:
    for field in fields(Leaf):
        value = getattr(LEAF, field.name)
        changed = {
            int: lambda v: v + 1,
            str: lambda v: v + "x",
            bytes: lambda v: v[:-1] + b"\x01",
            datetime: lambda v: v + timedelta(microseconds=1),
        }[type(value)](value)
        assert leaf_bytes(replace(LEAF, **{field.name: changed})) != leaf_bytes(LEAF), field.name


def test_the_same_moment_in_another_zone_is_the_same_leaf() -> None:
    elsewhere = LEAF.at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert leaf_bytes(replace(LEAF, at=elsewhere)) == leaf_bytes(LEAF)
    with pytest.raises(ValueError, match="time zone"):
        leaf_bytes(replace(LEAF, at=LEAF.at.replace(tzinfo=None)))
    with pytest.raises(ValueError, match="32 bytes"):
        leaf_bytes(replace(LEAF, payload_commitment=b"short"))
