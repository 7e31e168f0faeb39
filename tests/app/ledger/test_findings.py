"""Tampering with what is stored, and what the verifier then names: the entry, or the tightest range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.ledger import exports
from app.ledger.verification import verify
from tests.app.ledger.logs import Json, Log, as_lines, leaf_hash_of, signing_key, typical_log
from tests.app.ledger.named import (
    COLUMNS,
    KEYS,
    LOG,
    assert_named,
    change,
    found_in,
    kept,
    line_of,
    names,
    place_of,
    rewritten,
)


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
