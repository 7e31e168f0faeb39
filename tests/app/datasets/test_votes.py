"""Class-level labels: tallies add up, so that removed rows and corrected annotations can be accounted for."""

from __future__ import annotations

import numpy as np
import pytest

from app.datasets.votes import (
    class_labels,
    concept_mask,
    encode_votes,
    tally,
    vote_certainties,
    vote_labels,
)

ROWS, ATTRIBUTES, CLASSES = 60, 7, 4


@pytest.fixture
def votes() -> np.ndarray:
    rng = np.random.default_rng(5)
    return encode_votes(rng.integers(0, 2, (ROWS, ATTRIBUTES)), rng.integers(1, 5, (ROWS, ATTRIBUTES)))


@pytest.fixture
def classes() -> np.ndarray:
    return np.random.default_rng(6).integers(0, CLASSES, ROWS)


def test_a_byte_holds_label_and_certainty() -> None:
    labels, certainties = np.meshgrid([0, 1], [1, 2, 3, 4])
    encoded = encode_votes(labels, certainties)
    assert len(np.unique(encoded)) == 8
    np.testing.assert_array_equal(vote_labels(encoded), labels)
    np.testing.assert_array_equal(vote_certainties(encoded), certainties)
    assert encode_votes(np.array([1]), np.array([0])).tolist() == [0]


def test_what_counts_as_a_vote() -> None:
    labels = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0]]).T
    certainties = np.array([[1, 2, 3, 4, 1, 2, 3, 4, 0]]).T
    assert tally(encode_votes(labels, certainties), np.zeros(9, int), 1).tolist() == [[[3, 4]]]


def test_against_counting_one_by_one(votes: np.ndarray, classes: np.ndarray) -> None:
    expected = np.zeros((CLASSES, ATTRIBUTES, 2), int)
    for row in range(ROWS):
        for attribute in range(ATTRIBUTES):
            label, certainty = votes[row, attribute] % 2, votes[row, attribute] // 2
            if label == 1 or certainty > 1:
                expected[classes[row], attribute, label] += 1
    np.testing.assert_array_equal(tally(votes, classes, CLASSES), expected)


def test_removed_rows_take_their_votes_away(votes: np.ndarray, classes: np.ndarray) -> None:
    gone = np.arange(ROWS) % 5 == 0
    without = tally(votes, classes, CLASSES) - tally(votes[gone], classes[gone], CLASSES)
    np.testing.assert_array_equal(without, tally(votes[~gone], classes[~gone], CLASSES))
    assert (class_labels(without) != class_labels(tally(votes, classes, CLASSES))).any()


def test_correcting_one_annotation_changes_a_vote_and_only_in_a_close_race_a_label() -> None:
    labels = np.array([[1, 1], [1, 1], [0, 1], [0, 1]])
    votes, classes = encode_votes(labels, np.full((4, 2), 4)), np.zeros(4, int)
    assert class_labels(tally(votes, classes, 1)).tolist() == [[1, 1]]  # two against two: a tie is a 1
    labels[0] = 0
    corrected = encode_votes(labels, np.full((4, 2), 4))
    assert class_labels(tally(corrected, classes, 1)).tolist() == [[0, 1]]


def test_concepts_that_enough_classes_have() -> None:
    labels = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], np.int8)
    assert concept_mask(labels, 2).tolist() == [True, True, False]
    assert concept_mask(np.tile(labels, (4, 1))).tolist() == [True, False, False]
