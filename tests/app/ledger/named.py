"""One log to tamper with, and what a finding names."""

from __future__ import annotations

from typing import Any

import pytest

from app.ledger.findings import OutsideCheckpoint, TamperingFound
from app.ledger.verification import outside_checkpoint, verify
from tests.app.ledger.logs import Json, Log, as_lines, typical_log

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


def rewritten(seq: int) -> Log:
    log = LOG.copy()
    log.entries[seq - 1]["actor_ref"] = "operator"
    log.rehash()
    return log
