"""What two versions say differently, on numbers small enough to see."""

from __future__ import annotations

import torch

from worker.insight.changes import Predictions, changes

BEFORE = Predictions(
    torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.2, 0.2], [0.7, 0.3]], dtype=torch.float64), torch.tensor([0, 1, 2, 1])
)
AFTER = Predictions(
    torch.tensor([[0.1, 0.8], [0.5, 0.5], [0.8, 0.1], [0.6, 0.3]], dtype=torch.float64), torch.tensor([0, 1, 2, 0])
)


def test_the_largest_and_the_mean_change_of_each_row() -> None:
    found = changes(BEFORE, AFTER)
    torch.testing.assert_close(found.largest, torch.tensor([0.1, 0.0, 0.6, 0.1]))
    torch.testing.assert_close(found.mean, torch.tensor([0.05, 0.0, 0.35, 0.05]))
    assert found.concept.tolist()[0:1] + found.concept.tolist()[2:] == [1, 0, 0]
    assert found.relabelled.tolist() == [False, False, False, True]


def test_rows_of_another_class_come_first_and_then_the_most_changed() -> None:
    assert changes(BEFORE, AFTER).order().tolist() == [3, 2, 0, 1]


def test_nothing_changes_between_a_version_and_itself() -> None:
    found = changes(BEFORE, BEFORE)
    assert float(found.largest.max()) == 0
    assert not bool(found.relabelled.any())
