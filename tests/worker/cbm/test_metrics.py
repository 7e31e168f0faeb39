"""Metrics counted by hand."""

import numpy as np
import pytest

from worker.cbm.metrics import concept_metrics, label_metrics

PROBABILITIES = np.array([[0.9, 0.5, 0.2, 0.7], [0.8, 0.4, 0.1, 0.7], [0.3, 0.9, 0.4, 0.7], [0.6, 0.2, 0.3, 0.7]])
LABELS = np.array([[1, 1, 0, -1], [0, 1, 0, -1], [1, -1, 0, -1], [1, 0, 0, -1]])
NAMES = ["wing bar", "crest", "hooked bill", "unseen"]


def test_concept_metrics_by_hand() -> None:
    """Unknown labels are left out, a concept without any is absent, one half counts as present."""
    found = concept_metrics(PROBABILITIES, LABELS, NAMES)
    assert found["concepts"] == {
        # predicted 1 1 0 1, true 1 0 1 1: two hits, one false alarm, one miss
        "wing bar": {"f1": pytest.approx(2 / 3), "accuracy": 0.5, "rows": 4},
        # predicted 1 0 . 0, true 1 1 . 0
        "crest": {"f1": pytest.approx(2 / 3), "accuracy": pytest.approx(2 / 3), "rows": 3},
        # never predicted, never there: F1 is defined as 0
        "hooked bill": {"f1": 0.0, "accuracy": 1.0, "rows": 4},
    }
    assert found["concept_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert found["concept_accuracy"] == pytest.approx((0.5 + 2 / 3 + 1) / 3)


def test_nothing_known_is_scored_zero() -> None:
    found = concept_metrics(PROBABILITIES, np.full_like(LABELS, -1), NAMES)
    assert found == {"concept_f1": 0.0, "concept_accuracy": 0.0, "concepts": {}}


def test_probabilities_that_are_no_numbers_count_as_absent() -> None:
    found = concept_metrics(np.full((2, 1), np.nan), np.array([[1], [1]]), ["crest"])
    assert found["concept_f1"] == 0.0


def test_label_metrics_by_hand() -> None:
    """Class 2 has no rows and is no part of the mean, though it is predicted once; class 3 is never right."""
    classes = np.array([0, 0, 0, 1, 1, 3])
    predicted = np.array([0, 0, 2, 1, 0, 0])
    # class 0: 2 hits, 2 false alarms, 1 miss; class 1: 1 hit, 1 miss; class 3: 1 miss
    found = label_metrics(predicted, classes, 4)
    assert found["label_f1"] == pytest.approx((4 / 7 + 2 / 3 + 0) / 3)
    assert found["label_accuracy"] == pytest.approx(0.5)


def test_perfect_labels() -> None:
    classes = np.array([1, 1, 2])
    assert label_metrics(classes, classes, 5) == {"label_f1": 1.0, "label_accuracy": 1.0}
