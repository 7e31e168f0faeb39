"""Rows as tensors keep together what belongs together."""

import torch

from worker.data.tensors import LabelledImages


def rows(n: int, first: int = 0) -> LabelledImages:
    """Rows whose every tensor says which row it is of."""
    ids = torch.arange(first, first + n)
    return LabelledImages(ids.float()[:, None, None, None].expand(n, 1, 2, 2), ids[:, None] + 100, ids + 200, ids)


def assert_rows(found: LabelledImages, ids: list[int]) -> None:
    assert len(found) == len(ids)
    assert found.sample_ids.tolist() == ids
    assert found.images[:, 0, 1, 0].tolist() == [float(i) for i in ids]
    assert found.concepts[:, 0].tolist() == [i + 100 for i in ids]
    assert found.classes.tolist() == [i + 200 for i in ids]


def test_rows_are_taken_by_position_or_by_mask() -> None:
    assert_rows(rows(5).take(torch.tensor([3, 0, 3])), [3, 0, 3])
    assert_rows(rows(4).take(torch.tensor([False, True, False, True])), [1, 3])
    assert_rows(rows(4).take(torch.tensor([], dtype=torch.long)), [])


def test_rows_are_joined_in_order() -> None:
    assert_rows(rows(2).joined(rows(2, first=7)), [0, 1, 7, 8])


def test_rows_move_to_another_device_together() -> None:
    moved = rows(2).to("meta")
    assert {value.device.type for value in (moved.images, moved.concepts, moved.classes, moved.sample_ids)} == {"meta"}


def test_batches_cover_all_rows_in_order() -> None:
    batches = list(rows(5).batches(2))
    assert [len(images) for images, _ in batches] == [2, 2, 1]
    assert torch.cat([concepts for _, concepts in batches])[:, 0].tolist() == [100, 101, 102, 103, 104]
    assert list(rows(0).batches(2)) == []
