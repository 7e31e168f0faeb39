from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from app.datasets.snapshots import (
    SPLITS,
    UNKNOWN,
    AddedSample,
    InvalidChanges,
    InvalidSnapshot,
    NewConcept,
    Snapshot,
    SnapshotChanges,
)

LABELS = st.sampled_from([0, 1, UNKNOWN])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    ids = draw(st.lists(st.integers(1, 60), unique=True, max_size=12))
    k = draw(st.integers(1, 5))
    return Snapshot.from_rows([draw(rows(sample_id, k)) for sample_id in ids], k)


@st.composite
def rows(draw: st.DrawFn, sample_id: int, k: int) -> AddedSample:
    labels = draw(st.lists(LABELS, min_size=k, max_size=k))
    return AddedSample(sample_id, draw(st.integers(0, 2)), draw(st.integers(0, 9)), tuple(labels))


@st.composite
def snapshots_with_changes(draw: st.DrawFn) -> tuple[Snapshot, SnapshotChanges]:
    """Changes that fit, among them fixes and new labels of removed rows, and fixes of dropped concepts."""
    snapshot = draw(snapshots())
    ids, k = snapshot.sample_ids.tolist(), snapshot.concepts.shape[1]
    some_ids = st.lists(st.sampled_from(ids), unique=True) if ids else st.just([])
    places = st.tuples(st.sampled_from(ids), st.integers(0, k - 1)) if ids else st.nothing()
    fixes = draw(st.dictionaries(places, LABELS, max_size=6)) if ids else {}
    arriving = draw(st.lists(st.integers(100, 140), unique=True, max_size=4))
    labels = st.dictionaries(st.sampled_from(ids), st.integers(0, 1)) if ids else st.just({})
    new = [NewConcept(f"new {j}", tuple(draw(labels).items())) for j in range(draw(st.integers(0, 2)))]
    return snapshot, SnapshotChanges(
        fixes=tuple((sample_id, concept, value) for (sample_id, concept), value in fixes.items()),
        dropped=tuple(draw(st.lists(st.integers(0, k - 1), unique=True, max_size=k - 1))),
        removed=tuple(draw(some_ids)),
        added=tuple(draw(rows(sample_id, k + len(new))) for sample_id in arriving),
        new=tuple(new),
    )


def applied_row_by_row(snapshot: Snapshot, changes: SnapshotChanges) -> dict[int, tuple[int, int, list[int]]]:
    """What ``apply`` should give, in the plainest way."""
    table = {
        int(snapshot.sample_ids[i]): (int(snapshot.splits[i]), int(snapshot.classes[i]), snapshot.concepts[i].tolist())
        for i in range(len(snapshot))
    }
    for sample_id, column, value in changes.fixes:
        table[sample_id][2][column] = value
    for concept in changes.new:
        labels = dict(concept.labels)
        for sample_id, (_, _, values) in table.items():
            values.append(labels.get(sample_id, UNKNOWN))
    for sample_id in changes.removed:
        del table[sample_id]
    for row in changes.added:
        table[row.sample_id] = (row.split, row.class_index, list(row.concepts))
    columns = snapshot.concepts.shape[1] + len(changes.new)
    kept = [column for column in range(columns) if column not in changes.dropped]
    return {
        sample_id: (split, class_index, [labels[concept] for concept in kept])
        for sample_id, (split, class_index, labels) in table.items()
    }


@given(snapshots_with_changes())
def test_apply_does_what_row_by_row_edits_do(case: tuple[Snapshot, SnapshotChanges]) -> None:
    snapshot, changes = case
    before = snapshot.digest
    after = snapshot.apply(changes)
    expected = applied_row_by_row(snapshot, changes)
    assert after.sample_ids.tolist() == sorted(expected)
    for index, sample_id in enumerate(after.sample_ids.tolist()):
        found = (int(after.splits[index]), int(after.classes[index]), after.concepts[index].tolist())
        assert found == expected[sample_id]
    assert snapshot.digest == before


@given(snapshots_with_changes(), st.randoms(use_true_random=False))
def test_the_order_of_changes_does_not_matter(case: tuple[Snapshot, SnapshotChanges], random: Random) -> None:
    snapshot, changes = case
    parts = {name: tuple(random.sample(part, len(part))) for name, part in vars(changes).items() if name != "new"}
    new = (NewConcept(of.name, tuple(random.sample(of.labels, len(of.labels)))) for of in changes.new)
    shuffled = SnapshotChanges(**parts, new=tuple(new))  # new columns are in the order in which they are named
    assert snapshot.apply(shuffled).digest == snapshot.apply(changes).digest


@given(snapshots())
def test_no_changes_change_nothing(snapshot: Snapshot) -> None:
    assert snapshot.apply(SnapshotChanges()) == snapshot


@given(snapshots())
def test_bytes_give_the_same_snapshot_and_the_same_bytes(snapshot: Snapshot) -> None:
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert again == snapshot
    assert again.to_bytes() == snapshot.to_bytes()
    assert again.digest == snapshot.digest
    assert hash(again) == hash(snapshot)


@given(snapshots_with_changes())
def test_changes_survive_json(case: tuple[Snapshot, SnapshotChanges]) -> None:
    _, changes = case
    assert SnapshotChanges.from_json(json.loads(json.dumps(changes.to_json()))) == changes


@given(snapshots())
def test_splits_partition_the_rows(snapshot: Snapshot) -> None:
    found = np.concatenate([snapshot.rows(split) for split in SPLITS])
    assert sorted(found.tolist()) == list(range(len(snapshot)))
    assert snapshot.counts == {split: len(snapshot.rows(split)) for split in SPLITS}


def test_the_digest_is_the_same_in_every_release() -> None:
    snapshot = Snapshot.from_rows([AddedSample(7, 1, 2, (1, UNKNOWN)), AddedSample(3, 0, 0, (0, 1))], 2)
    assert snapshot.digest == "72d68711785e76c2b8981143e736191bba2da64835ae308a616ed1a65dd7cbff"


def test_load_reads_what_was_written(tmp_path: Path) -> None:
    snapshot = Snapshot.from_rows([AddedSample(1, 0, 0, (1,))], 1)
    (tmp_path / "file").write_bytes(snapshot.to_bytes())
    assert Snapshot.load(tmp_path / "file") == snapshot


def test_arrays_cannot_be_written_through() -> None:
    ids = np.array([1], np.int64)
    snapshot = Snapshot(ids, np.array([0], np.int8), np.array([0], np.int32), np.array([[1]], np.int8))
    ids[0] = 9
    assert snapshot.sample_ids.tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        snapshot.concepts[0, 0] = 0


def arrays(**changed: NDArray[Any]) -> dict[str, NDArray[Any]]:
    good: dict[str, NDArray[Any]] = {
        "sample_ids": np.array([1, 2], np.int64),
        "splits": np.array([0, 2], np.int8),
        "classes": np.array([0, 1], np.int32),
        "concepts": np.array([[0, 1], [1, -1]], np.int8),
    }
    return {**good, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"sample_ids": np.array([2, 1], np.int64)},
        {"sample_ids": np.array([1, 1], np.int64)},
        {"sample_ids": np.array([1, 2], np.int32)},
        {"sample_ids": np.array([[1], [2]], np.int64)},
        {"splits": np.array([0, 3], np.int8)},
        {"splits": np.array([0], np.int8)},
        {"classes": np.array([0, -1], np.int32)},
        {"concepts": np.array([[0, 1], [1, 2]], np.int8)},
        {"concepts": np.array([0, 1], np.int8)},
        {"concepts": np.array([[0.0, 1.0], [1.0, np.nan]])},
    ],
)
def test_arrays_that_are_no_snapshot_are_refused(changed: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(InvalidSnapshot):
        Snapshot(**arrays(**changed))
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_bytes(save(arrays(**changed), metadata={"format": "modelmend.snapshot.1"}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not safetensors",
        save(arrays()),
        save({**arrays(), "more": np.zeros(1)}, metadata={"format": "modelmend.snapshot.1"}),
        save(arrays(), metadata={"format": "modelmend.snapshot.1"})[:-1],
    ],
)
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_bytes(data)


@pytest.mark.parametrize(
    "changes",
    [
        SnapshotChanges(fixes=((9, 0, 1),)),
        SnapshotChanges(fixes=((1, 2, 1),)),
        SnapshotChanges(fixes=((1, -1, 1),)),
        SnapshotChanges(fixes=((1, 0, 2),)),
        SnapshotChanges(fixes=((1, 0, 0), (1, 0, 1))),
        SnapshotChanges(removed=(3,)),
        SnapshotChanges(dropped=(2,)),
        SnapshotChanges(dropped=(0, 1)),
        SnapshotChanges(added=(AddedSample(2, 0, 0, (1, 1)),)),
        SnapshotChanges(removed=(2,), added=(AddedSample(2, 0, 0, (1, 1)),)),
        SnapshotChanges(added=(AddedSample(5, 0, 0, (1, 1)), AddedSample(5, 0, 0, (1, 1)))),
        SnapshotChanges(added=(AddedSample(5, 0, 0, (1,)),)),
        SnapshotChanges(added=(AddedSample(5, 3, 0, (1, 1)),)),
        SnapshotChanges(added=(AddedSample(5, 0, 0, (1, 300)),)),
        SnapshotChanges(new=(NewConcept("new", ((9, 1),)),)),
        SnapshotChanges(new=(NewConcept("new", ((1, UNKNOWN),)),)),
        SnapshotChanges(new=(NewConcept("new", ((1, 0), (1, 1))),)),
        SnapshotChanges(new=(NewConcept("new"),), fixes=((1, 2, 1),)),
        SnapshotChanges(new=(NewConcept("new"),), dropped=(2,)),
        SnapshotChanges(new=(NewConcept("new"),), dropped=(0, 1)),
        SnapshotChanges(new=(NewConcept("new"),), added=(AddedSample(5, 0, 0, (1, 1)),)),
    ],
)
def test_changes_that_do_not_fit_are_refused(changes: SnapshotChanges) -> None:
    with pytest.raises(InvalidChanges):
        Snapshot(**arrays()).apply(changes)


def test_changes_do_not_fit_an_empty_snapshot() -> None:
    with pytest.raises(InvalidChanges):
        Snapshot.from_rows([], 2).apply(SnapshotChanges(removed=(1,)))
