"""Which rows left, came or changed, told from the two sides alone."""

import pytest
import torch
from torch import Tensor

from tests.worker.editing.rows import edited, random_rows
from worker.editing.edited_data import UNKNOWN, EditedData


def ids(data: EditedData, positions: Tensor, side: str) -> set[int]:
    rows = data.before if side == "before" else data.after
    return set(rows.sample_ids[positions].tolist())


def test_rows_are_told_apart_by_what_became_of_them() -> None:
    before, added = random_rows(12, unknown=0.0), random_rows(3, first_id=100, seed=1)
    flipped = 1 - int(before.concepts[2, 1])
    data = edited(
        before,
        fixed=[
            (2, 1, flipped),
            (5, 0, UNKNOWN),
            (7, 3, int(before.concepts[7, 3])),
            (9, 0, 1 - int(before.concepts[9, 0])),
        ],
        removed=[0, 9],
        added=added,
    )
    own = before.sample_ids.tolist()
    assert ids(data, data.removed, "before") == {own[0], own[9]}
    assert ids(data, data.added, "after") == set(added.sample_ids.tolist())
    # Row 7 was "fixed" to the label it had, row 9 is removed whatever was fixed in it.
    assert ids(data, data.fixed, "after") == {own[2], own[5]}
    assert ids(data, data.untouched, "after") == set(own) - {own[0], own[9], own[2], own[5]}
    assert len(data.fixed) + len(data.added) + len(data.untouched) == len(data.after)


def test_positions_before_belong_to_the_same_rows() -> None:
    before = random_rows(10)
    data = edited(before, removed=[3, 4], added=random_rows(2, first_id=50, seed=1))
    positions = data.untouched
    assert torch.equal(data.before.sample_ids[data.before_of(positions)], data.after.sample_ids[positions])
    assert torch.equal(data.before.images[data.before_of(positions)], data.after.images[positions])


def test_a_dropped_concept_fixes_no_row() -> None:
    before = random_rows(8, unknown=0.0)
    data = edited(before, fixed=[(1, 2, UNKNOWN), (3, 0, 1 - int(before.concepts[3, 0]))], dropped=(2,))
    assert ids(data, data.fixed, "after") == {int(before.sample_ids[3])}
    assert len(data.untouched) == 7


def test_dropped_concepts_must_be_unknown_after_the_edit() -> None:
    rows = random_rows(4, unknown=0.0)
    with pytest.raises(ValueError, match="dropped concepts must be unknown"):
        EditedData(rows, rows, (1,))


def test_an_edit_of_nothing_touches_nothing() -> None:
    rows = random_rows(5)
    data = edited(rows)
    assert [len(part) for part in (data.removed, data.added, data.fixed, data.untouched)] == [0, 0, 0, 5]


def test_every_row_may_be_touched() -> None:
    before = random_rows(4, unknown=0.0)
    data = edited(before, fixed=[(i, 0, 1 - int(before.concepts[i, 0])) for i in range(4)])
    assert len(data.fixed) == 4
    assert len(data.untouched) == 0


def test_lessons_leave_out_what_leaves() -> None:
    """Rows that are removed stay with their labels, dropped concepts are unknown on both sides."""
    before = random_rows(9, unknown=0.0)
    data = edited(before, fixed=[(1, 0, 1 - int(before.concepts[1, 0]))], removed=[4, 6], dropped=(3,)).lessons()
    assert len(data.removed) == 0
    assert ids(data, data.fixed, "after") == {int(before.sample_ids[1])}
    assert bool((data.before.concepts[:, 3] == UNKNOWN).all())
    stay = {int(i): row for i, row in zip(data.after.sample_ids, data.after.concepts, strict=True)}
    for position in (4, 6):
        assert torch.equal(stay[int(before.sample_ids[position])][:3], before.concepts[position][:3])
    assert bool((data.after.concepts[:, 3] == UNKNOWN).all())
