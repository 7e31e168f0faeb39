"""Whatever byte, member, line or row is changed: it is found, and where it is."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.ledger.findings import TamperingFound, UnreadableExport
from app.ledger.verification import verify
from tests.app.ledger.logs import Json, as_lines
from tests.app.ledger.named import (
    COLUMNS,
    KEYS,
    LOG,
    change,
    found_in,
    names,
)


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
