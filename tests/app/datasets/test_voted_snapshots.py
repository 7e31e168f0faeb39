"""Snapshots whose labels are votes of classes: an edit changes votes, and every row of a class has what then wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from app.datasets.elections import Flip, fallen_below, flips
from app.datasets.snapshots import (
    UNKNOWN,
    AddedSample,
    InvalidSnapshot,
    NewConcept,
    Snapshot,
    SnapshotChanges,
)

BALLOTS = st.sampled_from([0, 1, UNKNOWN])
Row = tuple[int, int, tuple[int, ...]]  # split, class, votes


def registered(rows: dict[int, Row], v: int) -> Snapshot:
    """As a data set of these rows is registered."""
    ids = sorted(rows)
    return Snapshot.by_vote(
        np.array(ids, np.int64),
        np.array([rows[i][0] for i in ids], np.int8),
        np.array([rows[i][1] for i in ids], np.int32),
        np.array([rows[i][2] for i in ids], np.int8).reshape(len(ids), v),
    )


@st.composite
def edits(draw: st.DrawFn) -> tuple[dict[int, Row], int, SnapshotChanges]:
    """Few classes and rows, so that many races are close; fixes of removed rows and of dropped concepts among them."""
    v = draw(st.integers(1, 3))
    row = st.tuples(st.integers(0, 2), st.integers(0, 1), st.tuples(*[BALLOTS] * v))
    rows = {number: draw(row) for number in range(draw(st.integers(1, 9)))}
    places = st.tuples(st.sampled_from(sorted(rows)), st.integers(0, v - 1))
    fixes = draw(st.dictionaries(places, BALLOTS, max_size=6))
    return (
        rows,
        v,
        SnapshotChanges(
            fixes=tuple((sample_id, column, value) for (sample_id, column), value in fixes.items()),
            dropped=tuple(draw(st.sets(st.integers(0, v - 1), max_size=v - 1))),
            removed=tuple(draw(st.sets(st.sampled_from(sorted(rows)), max_size=4))),
            added=tuple(AddedSample(100 + number, *draw(row)) for number in range(draw(st.integers(0, 3)))),
        ),
    )


@given(edits())
def test_an_edit_gives_what_registering_the_edited_rows_gives(
    case: tuple[dict[int, Row], int, SnapshotChanges],
) -> None:
    rows, v, changes = case
    edited = {sample_id: (split, class_, list(votes)) for sample_id, (split, class_, votes) in rows.items()}
    for sample_id, column, value in changes.fixes:
        edited[sample_id][2][column] = value
    for sample_id in changes.removed:
        del edited[sample_id]
    for row in changes.added:
        edited[row.sample_id] = (row.split, row.class_index, list(row.concepts))
    kept = [column for column in range(v) if column not in changes.dropped]
    anew = {i: (split, class_, tuple(votes[j] for j in kept)) for i, (split, class_, votes) in edited.items()}
    expected = registered(anew, len(kept))
    found = registered(rows, v).apply(changes)
    assert found == expected
    assert found.digest == expected.digest


@given(edits())
def test_labels_are_those_of_counting_by_hand(case: tuple[dict[int, Row], int, SnapshotChanges]) -> None:
    rows, v, _ = case
    snapshot = registered(rows, v)
    for position, sample_id in enumerate(sorted(rows)):
        for column in range(v):
            cast = [
                votes[column] for split, class_, votes in rows.values() if (split, class_) == (0, rows[sample_id][1])
            ]
            assert snapshot.concepts[position, column] == (cast.count(1) >= cast.count(0))


@given(edits())
def test_bytes_give_the_same_snapshot(case: tuple[dict[int, Row], int, SnapshotChanges]) -> None:
    rows, v, _ = case
    snapshot = registered(rows, v)
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert again == snapshot
    assert again.to_bytes() == snapshot.to_bytes()
    assert again != Snapshot(snapshot.sample_ids, snapshot.splits, snapshot.classes, snapshot.concepts)


CLOSE: dict[int, Row] = {
    # Two of class 0 for, one against; a held-out row that shares the label and has no say.
    1: (0, 0, (1,)),
    2: (0, 0, (1,)),
    3: (0, 0, (0,)),
    4: (2, 0, (0,)),
    # Class 1 is against.
    5: (0, 1, (0,)),
    6: (1, 1, (1,)),
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (SnapshotChanges(), [1, 1, 1, 1, 0, 0]),
        (SnapshotChanges(fixes=((1, 0, 0),)), [0, 0, 0, 0, 0, 0]),
        (SnapshotChanges(fixes=((1, 0, UNKNOWN),)), [1, 1, 1, 1, 0, 0]),  # a tie is a 1
        (SnapshotChanges(fixes=((1, 0, UNKNOWN), (2, 0, UNKNOWN))), [0, 0, 0, 0, 0, 0]),
        (SnapshotChanges(fixes=((4, 0, 1), (6, 0, 0))), [1, 1, 1, 1, 0, 0]),  # no voters
        (SnapshotChanges(removed=(1, 2)), [0, 0, 0, 0]),
        (SnapshotChanges(removed=(5,)), [1, 1, 1, 1, 1]),  # nobody votes for class 1 any more: a tie
        (SnapshotChanges(removed=(1,), fixes=((1, 0, 0),)), [1, 1, 1, 0, 0]),  # removal wins: a tie of two
        (SnapshotChanges(added=(AddedSample(9, 0, 1, (1,)),)), [1, 1, 1, 1, 1, 1, 1]),
        (SnapshotChanges(added=(AddedSample(9, 1, 1, (1,)),)), [1, 1, 1, 1, 0, 0, 0]),  # calibration has no vote
        (SnapshotChanges(added=(AddedSample(9, 0, 2, (0,)),)), [1, 1, 1, 1, 0, 0, 0]),  # the first of its class
    ],
)
def test_what_an_edit_does_to_labels(changes: SnapshotChanges, expected: list[int]) -> None:
    assert registered(CLOSE, 1).apply(changes).concepts[:, 0].tolist() == expected


def test_new_concepts_are_labels_of_rows_and_no_votes() -> None:
    snapshot = registered(CLOSE, 1)
    new = NewConcept("new", ((1, 0), (5, 1)))
    wider = snapshot.apply(SnapshotChanges(new=(new,), fixes=((1, 0, 0),)))
    assert wider.votes is not None
    assert wider.votes.shape == (6, 1)
    assert wider.concepts.tolist() == [[0, 0], [0, UNKNOWN], [0, UNKNOWN], [0, UNKNOWN], [0, 1], [0, UNKNOWN]]
    fixed = wider.apply(SnapshotChanges(fixes=((2, 1, 1), (2, 0, 1)), added=(AddedSample(9, 0, 0, (1, 0)),)))
    assert fixed.concepts[:4].tolist() == [[1, 0], [1, 1], [1, UNKNOWN], [1, UNKNOWN]]
    assert fixed.concepts[-1].tolist() == [1, 0]
    alone = wider.apply(SnapshotChanges(dropped=(0,)))
    assert alone.votes is None
    assert alone.concepts[:, 0].tolist() == wider.concepts[:, 1].tolist()


def test_rows_may_be_left_out_without_a_count() -> None:
    without = registered(CLOSE, 1).without([1, 2])
    assert (without.sample_ids.tolist(), without.concepts[:, 0].tolist()) == ([3, 4, 5, 6], [1, 1, 0, 0])


@pytest.mark.parametrize(
    "votes",
    [
        np.array([[2]] * 6, np.int8),
        np.array([[1]] * 6, np.int64),
        np.array([[1]] * 5, np.int8),
        np.array([[1, 0]] * 6, np.int8),
        np.empty((6, 0), np.int8),
        np.array([1] * 6, np.int8),
    ],
)
def test_votes_that_do_not_fit_are_refused(votes: np.ndarray[Any, Any]) -> None:
    snapshot = registered(CLOSE, 1)
    plain = (snapshot.sample_ids, snapshot.splits, snapshot.classes, snapshot.concepts)
    with pytest.raises(InvalidSnapshot):
        Snapshot(*plain, votes)
    arrays: dict[str, Any] = dict(
        zip(("sample_ids", "splits", "classes", "concepts", "votes"), (*plain, votes), strict=True)
    )
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_bytes(save(arrays, metadata={"format": "modelmend.snapshot.2"}))


def test_the_formats_are_told_apart() -> None:
    snapshot = registered(CLOSE, 1)
    names = ("sample_ids", "splits", "classes", "concepts", "votes")
    arrays: dict[str, Any] = {name: getattr(snapshot, name) for name in names}
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_bytes(save(arrays, metadata={"format": "modelmend.snapshot.1"}))
    arrays.pop("votes")
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_bytes(save(arrays, metadata={"format": "modelmend.snapshot.2"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (SnapshotChanges(fixes=((1, 0, 0),)), [Flip(0, 0, 0, 4)]),
        (SnapshotChanges(removed=(1, 2)), [Flip(0, 0, 0, 2)]),
        (SnapshotChanges(removed=(1, 2, 3, 4)), []),  # nobody is left whose label could change
        (SnapshotChanges(removed=(1,)), []),
        (
            SnapshotChanges(fixes=((1, 0, 0),), added=(AddedSample(9, 0, 1, (1,)),)),
            [Flip(0, 0, 0, 4), Flip(1, 0, 1, 2)],
        ),
    ],
)
def test_races_that_turn(changes: SnapshotChanges, expected: list[Flip]) -> None:
    assert flips(registered(CLOSE, 1), changes) == expected


@given(edits())
def test_races_that_turn_are_the_labels_that_differ(case: tuple[dict[int, Row], int, SnapshotChanges]) -> None:
    rows, v, changes = case
    before = registered(rows, v)
    after = before.apply(changes)
    kept = [column for column in range(v) if column not in changes.dropped]
    stay = [i for i in rows if i not in changes.removed]
    labels = [dict(zip(of.sample_ids.tolist(), of.concepts.tolist(), strict=True)) for of in (before, after)]
    differing = [
        (rows[i][1], j) for i in stay for column, j in enumerate(kept) if labels[0][i][j] != labels[1][i][column]
    ]
    found = flips(before, changes)
    assert sum(flip.rows for flip in found) == len(differing)
    assert {(flip.class_index, flip.concept) for flip in found} == set(differing)


def test_concepts_that_too_few_classes_have_now() -> None:
    before = registered({1: (0, 0, (1, 1, 0)), 2: (0, 1, (1, 1, 1)), 3: (0, 2, (0, 1, 0))}, 3)
    after = before.apply(SnapshotChanges(fixes=((2, 1, 0), (2, 2, 0)), dropped=(0,)))
    assert fallen_below(before, after, [1, 2], 3) == [1]
    assert fallen_below(before, after, [1, 2], 2) == []  # two classes still have it
    assert fallen_below(before, after, [1, 2], 1) == [2]
    assert fallen_below(before, before, [0, 1, 2], 3) == []  # below before, too
