"""Tampering with what is stored, and what the verifier then names: the entry, or the tightest range."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.ledger import exports
from app.ledger.findings import OutsideCheckpoint, TamperingFound, UnreadableExport
from app.ledger.verification import outside_checkpoint, verify
from tests.app.ledger.logs import Json, Log, as_lines, leaf_hash_of, signing_key, typical_log

LOG = typical_log()  # 21 entries, checkpoints at 0, 4, 8 ... 20 and the end; 2, 3, 7 erased by 11
KEYS = [LOG.keys[0].verifier]

CHANGED: dict[str, Any] = {
    "kind": "edit.failed",
    "actor_ref": "operator",
    "subject_ref": "s-2",
    "dataset_id": "others",
    "model_id": "a-third",
    "job_id": "00000000-0000-4000-8000-0000000000ff",
    "parent_version": 99,
    "result_version": 99,
    "artifact_sha256": "ab" * 32,
    "payload_commitment": "cd" * 32,
}

COLUMNS = ["at", *CHANGED]


def change(log: Log, seq: int, column: str) -> None:
    entry = log.entries[seq - 1]
    entry[column] = entry["at"].replace(".000004", ".500000") if column == "at" else CHANGED[column]


def kept(log: Log, size: int, source: str = "the auditor's copy") -> OutsideCheckpoint:
    return outside_checkpoint(log.note(size).encode(), source, KEYS)


def found_in(lines: list[Json] | list[bytes], *outside: OutsideCheckpoint) -> TamperingFound:
    with pytest.raises(TamperingFound) as found:
        verify([line if isinstance(line, bytes) else as_lines([line])[0] for line in lines], KEYS, outside)
    return found.value


def assert_named(found: TamperingFound, first: int | None, last: int | None, sentence: str) -> None:
    assert (found.first_seq, found.last_seq) == (first, last), found
    assert sentence in str(found)


def names(found: Exception, first: int, last: int) -> bool:
    """Whether what is named meets this range."""
    assert isinstance(found, TamperingFound)
    return (
        found.first_seq is not None
        and found.last_seq is not None
        and found.first_seq <= last
        and first <= found.last_seq
    )


def line_of(lines: list[Json], seq: int) -> Json:
    return next(line for line in lines if "entry" in line and line["entry"]["seq"] == seq)


def place_of(lines: list[Json], seq: int) -> int:
    return lines.index(line_of(lines, seq))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("seq", [4, 5, 21])
def test_a_changed_column_is_named_by_its_stored_hash(column: str, seq: int) -> None:
    log = LOG.copy()
    change(log, seq, column)
    found = found_in(log.export())
    expected = "not the one committed to" if column == "payload_commitment" else "not what its stored hash says"
    assert_named(found, seq, seq, expected)


@pytest.mark.parametrize("column", COLUMNS[:-1])
@pytest.mark.parametrize(("seq", "first", "last"), [(4, 3, 4), (5, 5, 6), (6, 5, 6), (20, 19, 20), (21, 21, 21)])
def test_a_changed_column_with_its_stored_hash_is_named_by_the_hash_above(
    column: str, seq: int, first: int, last: int
) -> None:
    log = LOG.copy()
    change(log, seq, column)
    final = log.note()
    log.nodes[0, seq - 1] = leaf_hash_of(log.entries[seq - 1])
    lines = log.export()
    lines[-1] = {"checkpoint": final}
    assert_named(found_in(lines), first, last, "signed over others" if seq == 21 else "one of them was changed")


def test_a_stored_hash_changed_alone_is_told_from_a_changed_entry() -> None:
    for (level, index), _ in LOG.nodes.items():
        log = LOG.copy()
        final = log.note()
        log.nodes[level, index] = bytes(32)
        lines = log.export()
        lines[-1] = {"checkpoint": final}
        seq = (index + 1) << level
        assert_named(found_in(lines), seq, seq, "as it was signed" if level == 0 else "as they were signed")


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_hashes_rewritten_up_to_some_level_leave_the_range_below_it(level: int) -> None:
    log = typical_log(every=32)
    final = log.note()
    log.entries[5]["actor_ref"] = "operator"
    right = log.copy()
    right.rehash()
    for below in range(level):
        log.nodes[below, 5 >> below] = right.nodes[below, 5 >> below]
    first = (5 >> level << level) + 1
    lines = log.export()
    lines[-1] = {"checkpoint": final}
    found = found_in(lines)
    assert_named(found, first, first + (1 << level) - 1, "one of them was changed")
    assert names(found, 6, 6)


def test_what_a_checkpoint_vouches_for_is_not_under_suspicion() -> None:
    log = LOG.copy()
    log.entries[4]["actor_ref"] = "operator"
    right = log.copy()
    right.rehash()
    for level in range(3):
        log.nodes[level, 4 >> level] = right.nodes[level, 4 >> level]
    # The next hash above is over entries 1 to 8, and 1 to 4 are signed.
    assert_named(found_in(log.export()), 5, 8, "one of them was changed")


@pytest.mark.parametrize(
    ("field", "value"),
    [("payload", {"number": 6}), ("payload", {}), ("payload_salt", "00" * 32), ("payload_commitment", "00" * 32)],
)
def test_a_changed_payload_or_salt(field: str, value: Any) -> None:
    log = LOG.copy()
    log.entries[4][field] = value
    assert_named(found_in(log.export()), 5, 5, "Entry 5 has a payload or a salt that is not the one committed to")


@pytest.mark.parametrize(("first", "last"), [(1, 1), (6, 6), (6, 9), (20, 20)])
def test_deleted_rows(first: int, last: int) -> None:
    lines = LOG.export()
    for seq in range(first, last + 1):
        lines.remove(line_of(lines, seq))
    checkpoints = [line for line in lines if "checkpoint" in line]
    assert len(checkpoints) == 7
    found = found_in(lines)
    # A checkpoint between is met before the next entry is.
    assert_named(found, first, {9: 8, 20: 20}.get(last, last), "")


def test_swapped_rows() -> None:
    lines = LOG.export()
    one, other = place_of(lines, 13), place_of(lines, 15)
    lines[one], lines[other] = lines[other], lines[one]
    assert_named(found_in(lines), 13, 14, "comes entry 15")
    log = LOG.copy()
    log.entries[12], log.entries[14] = log.entries[14], log.entries[12]
    for seq in (13, 15):
        log.entries[seq - 1]["seq"] = seq
    assert_named(found_in(log.export()), 13, 13, "stored hash")


def test_rows_that_come_again() -> None:
    lines = LOG.export()
    lines.insert(place_of(lines, 14), line_of(lines, 9))
    assert_named(found_in(lines), 9, 14, "out of order")
    lines = LOG.export()
    lines.insert(place_of(lines, 14), line_of(lines, 13))
    assert_named(found_in(lines), 13, 14, "out of order")


def test_a_time_before_the_previous_one() -> None:
    log = LOG.copy()
    log.entries[4]["at"], log.entries[5]["at"] = log.entries[5]["at"], log.entries[4]["at"]
    log.rehash()
    assert_named(found_in(log.export()), 5, 6, "Entry 6 is dated before entry 5")
    log = LOG.copy()
    log.entries[4]["at"] = log.entries[2]["at"]
    log.rehash()
    assert_named(found_in(log.export()), 5, 5, "Entry 5 is dated before entry 4")


def test_an_entry_more_than_the_first_line_says() -> None:
    lines = LOG.export()
    lines[0]["size"] = 20
    assert_named(found_in(lines), 21, 21, "one more than the 20")


def cut(size: int) -> Log:
    """The log without its tail, as if nothing had ever followed."""
    log = Log()
    log.entries = LOG.copy().entries[:size]
    log.rehash()
    log.checkpoints = {at: note for at, note in LOG.checkpoints.items() if at <= size}
    return log


def test_a_tail_cut_off_the_file() -> None:
    lines = LOG.export()
    assert_named(found_in(lines[:-1]), 21, 21, "does not end with a checkpoint")
    assert_named(found_in(lines[: place_of(lines, 19)]), 19, 21, "the export's first line counts 21")
    assert_named(found_in(lines[:1]), 1, 21, "the export's first line counts 21")
    del lines[place_of(lines, 18) : -1]
    assert_named(found_in(lines), 18, 21, "A checkpoint counts 21 entries")


@pytest.mark.parametrize("size", [0, 12, 15, 20])
def test_a_tail_cut_off_the_log_is_told_by_outside_checkpoints_alone(size: int) -> None:
    lines = cut(size).export()
    if size < 11:
        assert verify(as_lines(lines), KEYS).size == size
        assert_named(found_in(lines, kept(LOG, 21), kept(LOG, 10)), size + 1, 21, "the auditor's copy counts 21")
    else:
        assert verify(as_lines(lines), KEYS, [kept(LOG, 4), kept(LOG, size)]).outside_checkpoints == 2
        assert_named(found_in(lines, kept(LOG, 4), kept(LOG, 21)), size + 1, 21, "the auditor's copy counts 21")


def rewritten(seq: int) -> Log:
    log = LOG.copy()
    log.entries[seq - 1]["actor_ref"] = "operator"
    log.rehash()
    return log


@pytest.mark.parametrize("seq", range(1, 21))
def test_a_rewrite_without_the_key_contradicts_the_next_checkpoint(seq: int) -> None:
    first = (seq - 1) // 4 * 4 + 1
    assert_named(found_in(rewritten(seq).export()), first, first + 3, "was signed over others than these")


def test_a_rewrite_of_the_unsigned_tail_is_told_by_an_outside_checkpoint_alone() -> None:
    lines = rewritten(21).export()
    assert verify(as_lines(lines), KEYS).size == 21
    assert_named(found_in(lines, kept(LOG, 21)), 1, 21, "another history of the first 21 entries; the log's key")
    assert_named(found_in(lines, kept(LOG, 20), kept(LOG, 21)), 21, 21, "another history")


def test_a_rewrite_with_the_key_is_told_by_an_outside_checkpoint_alone() -> None:
    log = rewritten(10)
    log.checkpoints = {size: log.note(size) for size in log.checkpoints}
    lines = log.export()
    assert verify(as_lines(lines), KEYS, [kept(LOG, 9)]).outside_checkpoints == 1
    assert_named(found_in(lines, kept(LOG, 12)), 1, 12, "the log's key has signed both")
    assert_named(found_in(lines, kept(LOG, 9), kept(LOG, 10), kept(LOG, 12)), 10, 10, "another history of the first 10")
    assert_named(found_in(lines, kept(LOG, 6), kept(LOG, 21)), 7, 21, "another history")


def test_an_empty_history_against_an_outside_checkpoint() -> None:
    assert verify(as_lines(Log().export()), KEYS, [kept(LOG, 0)]).outside_checkpoints == 1
    assert_named(found_in(Log().export(), kept(LOG, 1)), 1, 1, "counts 1 entries")


def test_replayed_and_misplaced_checkpoints() -> None:
    lines = LOG.export()
    lines[-1] = {"checkpoint": LOG.checkpoints[16]}
    assert_named(found_in(lines), 21, 21, "After entry 21 stands an older checkpoint, of 16")
    lines = LOG.export()
    lines.insert(place_of(lines, 7), {"checkpoint": LOG.checkpoints[4]})
    assert_named(found_in(lines), 5, 6, "After entry 6 stands an older checkpoint")
    lines = LOG.export()
    lines.insert(place_of(lines, 7), {"checkpoint": LOG.checkpoints[8]})
    assert_named(found_in(lines), 7, 8, "A checkpoint counts 8 entries, and 6 come before it")


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (LOG.note(8, signing_key(2)), "no known key has signed"),
        (LOG.note(8, signing_key(1, "other.example")), "a checkpoint of other.example"),
        (LOG.note(8).replace("\n8\n", "\n7\n"), "the signature of log.example"),
        (LOG.note(8)[:-1], "is not to be trusted"),
        (8, "is not a signed note"),
        (None, "is not a signed note"),
    ],
)
def test_checkpoints_that_are_not_the_logs(note: Any, sentence: str) -> None:
    lines = LOG.export()
    lines[lines.index({"checkpoint": LOG.checkpoints[8]})] = {"checkpoint": note}
    assert_named(found_in(lines), 5, 8, sentence)
    lines = LOG.export()
    lines[1] = {"checkpoint": note}
    assert found_in(lines).first_seq is None


def test_a_payload_missing_without_a_record_of_its_erasure() -> None:
    log = LOG.copy()
    log.forget((5, 6), (15, 15))
    assert_named(found_in(log.export()), 5, 6, "No entry records an erasure of the missing payload of entries 5 to 6")


def test_a_payload_that_is_said_to_be_erased_and_is_there() -> None:
    log = LOG.copy()
    log.entries[6].update({name: LOG_BEFORE.entries[6][name] for name in ("payload", "payload_salt")})
    assert_named(found_in(log.export()), 7, 7, "still has the payload that entry 11 says was erased")


LOG_BEFORE = typical_log(entries=10)


@pytest.mark.parametrize(
    "ranges", [None, {}, [[5]], [[5, 5, 5]], [[True, 5]], [[6, 5]], [[0, 1]], [[5, 6], [6, 7]], [[5, 22]], [[22, 22]]]
)
def test_records_of_erasure_that_name_nothing(ranges: Any) -> None:
    log = LOG.copy()
    log.append("ledger.payloads_erased", {} if ranges is None else {"entries": ranges})
    assert_named(found_in(log.export()), 22, 22, "Entry 22 does not")


def test_a_record_of_erasure_cannot_be_erased() -> None:
    log = LOG.copy()
    log.forget((11, 11))
    assert_named(found_in(log.export()), 11, 11, "Entry 11 does not say what was erased")
    log.append("ledger.payloads_erased", {"entries": [[11, 11]]})
    assert_named(found_in(log.export()), 11, 11, "Entry 11 does not say what was erased")


def test_payloads_erased_twice_and_beside_each_other() -> None:
    log = LOG.copy()
    log.erase((1, 3), (21, 21))
    assert verify(as_lines(log.export()), KEYS).erased_payloads == 5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: line | {"comment": ""}, "members that no hash covers"),
        (lambda line: {"entry": line["entry"]}, "nodes is missing"),
        (lambda line: {"nodes": line["nodes"]}, "entry is missing"),
        (lambda line: line | {"entry": None}, "it is no object"),
        (lambda line: line | {"nodes": []}, "does not come with the 2 stored hashes"),
        (lambda line: line | {"nodes": line["nodes"][:1]}, "does not come with the 2 stored hashes"),
        (lambda line: line | {"nodes": "".join(line["nodes"])}, "does not come with the 2 stored hashes"),
        (lambda line: line | {"nodes": [*line["nodes"], "00" * 32]}, "does not come with the 2 stored hashes"),
    ],
)
def test_lines_of_another_form(change: Callable[[Json], Json], sentence: str) -> None:
    lines = LOG.export()
    place = place_of(lines, 6)
    lines[place] = change(lines[place])
    assert_named(found_in(lines), 6, 6, sentence)


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"\xff\n", b" " * (exports.MAX_LINE_BYTES + 1)])
def test_lines_that_cannot_be_read(line: bytes) -> None:
    lines = as_lines(LOG.export())
    assert_named(found_in([*lines[:3], line, *lines[3:]]), 2, 2, "Line 4")
    assert_named(found_in([*lines, line]), 21, 21, "Line 30")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_receipt_with_a_changed_entry(column: str) -> None:
    log = LOG.copy()
    change(log, 6, column)
    receipt = log.receipt(5, 6)
    expected = "not the one committed to" if column == "payload_commitment" else "Entry 6 is not what the checkpoint's"
    assert_named(found_in([receipt]), 6, 6, expected)


def test_a_receipt_with_a_changed_proof() -> None:
    for place in range(len(LOG.receipt(6)["entries"][0]["inclusion_proof"])):
        receipt = LOG.receipt(5, 6)
        receipt["entries"][1]["inclusion_proof"][place] = "00" * 32
        assert_named(found_in([receipt]), 6, 6, "Entry 6 is not what the checkpoint's tree of 21 entries holds")
    for proof in (None, ["00"], [1], ["AB" * 32]):
        receipt = LOG.receipt(6)
        receipt["entries"][0]["inclusion_proof"] = proof
        assert_named(found_in([receipt]), 6, 6, "Entry 6 has a proof that is not a list of hashes")


def test_a_receipt_with_another_number() -> None:
    receipt = LOG.receipt(6)
    receipt["entries"][0]["entry"]["seq"] = 7
    assert_named(found_in([receipt]), 7, 7, "is not what the checkpoint's tree")
    receipt["entries"][0]["entry"]["seq"] = 22
    assert_named(found_in([receipt]), 22, 22, "is not what the checkpoint's tree")


def test_a_receipt_with_a_changed_checkpoint() -> None:
    for note in (LOG.note(None, signing_key(2)), LOG.note().replace("\n21\n", "\n20\n"), None):
        receipt = LOG.receipt(6) | {"checkpoint": note}
        assert_named(found_in([receipt]), None, None, "The checkpoint is not")
    receipt = LOG.receipt(6) | {"checkpoint": rewritten(2).note()}
    assert_named(found_in([receipt]), 6, 6, "leads to another root")


def test_a_receipt_with_an_entry_of_another_form() -> None:
    receipt = LOG.receipt(6)
    receipt["entries"].append({"entry": {}})
    assert_named(found_in([receipt]), None, None, "Entry no. 2 of the receipt is not")
    receipt = LOG.receipt(6)
    receipt["entries"][0]["entry"] = []
    assert_named(found_in([receipt]), None, None, "Entry no. 1 of the receipt is not an entry")


def test_a_models_history_that_was_changed() -> None:
    lines = LOG.model_export()  # entries 1, 4, 7, 10, 11, 13, ...
    changed = [dict(line) for line in lines]
    changed[2]["entry"] = changed[2]["entry"] | {"kind": "edit.failed"}
    assert_named(found_in(changed), 4, 4, "Entry 4 is not what the checkpoint's")
    assert_named(found_in([lines[0], lines[2], lines[1]]), 1, 4, "out of order")
    assert_named(found_in([lines[0], lines[2], lines[2]]), 4, 4, "out of order")
    assert_named(found_in([*lines[:2], {"entry": {}}]), None, None, "Line 3, after entry 1, is not")
    foreign = [lines[0], *LOG.receipt(2)["entries"]]
    assert_named(found_in(foreign), 2, 2, "Entry 2 is not one of the model digits-model")


def covered(lines: list[Json], place: int) -> tuple[int, int]:
    """The entries that a finding about this line may name: its own, or those since the checkpoint before."""
    before = [line["entry"]["seq"] for line in lines[:place] if "entry" in line]
    seq = before[-1] if before else 0
    if "entry" in lines[place]:
        return seq + 1, seq + 1
    return (seq - 1) // 4 * 4 + 1, seq + 1


def assert_found_at(lines: list[bytes], place: int) -> None:
    originals = LOG.export()
    with pytest.raises((TamperingFound, UnreadableExport)) as raised:
        verify(lines, KEYS)
    if isinstance(raised.value, UnreadableExport):
        assert place == 0
    elif place > 1:  # the first line and the checkpoint of no entries say nothing about an entry
        assert names(raised.value, *covered(originals, place))


@given(st.data())
def test_any_changed_byte_is_found_where_it_is(data: st.DataObject) -> None:
    originals = LOG.export()
    lines = as_lines(originals)
    place = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[place])
    at = data.draw(st.integers(0, len(line) - 2))
    line[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[at]))
    with suppress(ValueError):
        assume(json.dumps(json.loads(line)) != json.dumps(originals[place]))  # an escape may say the same
    lines[place] = bytes(line)
    assert_found_at(lines, place)


def paths(value: Any, *before: str | int) -> list[tuple[str | int, ...]]:
    """Where every member and item in a JSON value is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inner for path in [(*before, key), *paths(item, *before, key)]]


OTHER_VALUES = st.sampled_from(
    [None, True, False, 0, 1, -1, 7, 0.5, "", "x", "00" * 32, [], {}, ["x"], {"x": 1}, [[1, 2]], LOG.note(8)]
)


@given(st.data())
def test_any_changed_or_removed_or_added_member_is_found_where_it_is(data: st.DataObject) -> None:
    originals = LOG.export()
    lines = LOG.export()
    place = data.draw(st.integers(0, len(lines) - 1))
    *outer, name = data.draw(st.sampled_from(paths(lines[place])))
    target: Any = lines[place]
    for step in outer:
        target = target[step]
    match data.draw(st.sampled_from(["change", "remove", "add"])):
        case "change":
            target[name] = data.draw(OTHER_VALUES)
        case "remove":
            del target[name]
        case _ if isinstance(target, list):
            target.append(data.draw(OTHER_VALUES))
        case _:
            target["another"] = data.draw(OTHER_VALUES)
    # The list of keys in the first line is a convenience: fewer are no harm.
    assume(json.dumps(lines[place]) != json.dumps(originals[place]) and (place > 0 or "keys" not in (*outer, name)))
    assert_found_at(as_lines(lines), place)


@given(st.data())
def test_any_line_removed_or_repeated_or_moved_is_found(data: st.DataObject) -> None:
    lines = as_lines(LOG.export())
    place = data.draw(st.integers(0, len(lines) - 1))
    line = lines.pop(place)
    # Earlier checkpoints may be left out, and one may come twice: the last one vouches for all.
    repeated = data.draw(st.booleans())
    if repeated:
        lines.insert(place, line)
    to = data.draw(st.integers(0, len(lines)))
    if repeated or data.draw(st.booleans()):
        lines.insert(to, line)
    unchanged = [each for each in lines if b'{"checkpoint"' not in each] == [
        each for each in as_lines(LOG.export()) if b'{"checkpoint"' not in each
    ]
    assume(not (unchanged and b'{"checkpoint"' in line))
    assume(lines != as_lines(LOG.export()))
    with pytest.raises((TamperingFound, UnreadableExport)):
        verify(lines, KEYS)


@given(st.data())
def test_any_rewrite_by_a_superuser_is_found(data: st.DataObject) -> None:
    log = LOG.copy()
    log.publish()
    seq = data.draw(st.integers(1, log.size))
    column = data.draw(st.sampled_from(COLUMNS))
    change(log, seq, column)
    if column == "payload_commitment":
        log.forget((seq, seq))
    honest = LOG.copy().nodes
    log.rehash()
    levels = data.draw(st.integers(0, 5))
    log.nodes = {at: log.nodes[at] if at[0] < levels else honest[at] for at in log.nodes}
    found = found_in(log.export())
    assert names(found, seq, seq)
    assert found.last_seq
    assert found.first_seq
    assert found.last_seq - found.first_seq < 4
