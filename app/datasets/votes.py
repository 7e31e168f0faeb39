"""Class-level concept labels: what the images of a class say by vote.

Some data sets have many noisy annotations of a class, which should agree (CUB-200-2011; the rule is that of Koh et al.,
"Concept Bottleneck Models", 2020). The votes of single images are kept, not only their outcome: correcting one image's
annotation changes a vote and not a label, and removing an image takes its votes away, so that both may change the
labels of a whole class. Tallies add up: the tally without some rows is the difference.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_VOTE = 0
SILENT = -1  # what NO_VOTE, and an annotation that is none, count for
CERTAINTIES = {1: "not visible", 2: "guessing", 3: "probably", 4: "definitely"}
DEFINITELY = 4
MIN_CLASSES = 10

Votes = NDArray[np.uint8]
"""Shape ``(n, m)``: 0 where an image has no annotation, else ``label + 2 * certainty``."""


def encode_votes(labels: NDArray[Any], certainties: NDArray[Any]) -> Votes:
    """One byte for a label (0 or 1) and its certainty (1 to 4; 0 where there is no annotation)."""
    return np.where(certainties == 0, NO_VOTE, labels + 2 * certainties).astype(np.uint8)


def vote_labels(votes: Votes) -> NDArray[np.uint8]:
    """Shape ``(n, m)``: 0 or 1; 0 also where there is no annotation."""
    return votes & np.uint8(1)


def vote_certainties(votes: Votes) -> NDArray[np.uint8]:
    """Shape ``(n, m)``: 1 to 4 as in ``CERTAINTIES``, 0 where there is no annotation."""
    return votes >> np.uint8(1)


def ballots(votes: Votes) -> NDArray[np.int8]:
    """What votes count for: 0 against, 1 for, ``SILENT`` where there is none.

    "Absent, because not visible" is no vote; everything else counts once, however certain.
    """
    for_ = vote_labels(votes) == 1
    against = ~for_ & (vote_certainties(votes) > 1)
    return np.where(for_, 1, np.where(against, 0, SILENT)).astype(np.int8)


def count(cast: NDArray[np.int8], classes: NDArray[Any], class_count: int) -> NDArray[np.int64]:
    """Ballots against and for, shape ``(class_count, m, 2)``."""
    counts = np.zeros((class_count, cast.shape[1], 2), np.int64)
    np.add.at(counts[:, :, 0], classes, cast == 0)
    np.add.at(counts[:, :, 1], classes, cast == 1)
    return counts


def tally(votes: Votes, classes: NDArray[Any], class_count: int) -> NDArray[np.int64]:
    """Votes against and for, shape ``(class_count, m, 2)``; see :func:`ballots` for what counts."""
    return count(ballots(votes), classes, class_count)


def class_labels(counts: NDArray[np.int64]) -> NDArray[np.int8]:
    """Shape ``(classes, m)``: 1 where at least as many votes are for as against. A tie, also of no votes, is a 1."""
    return (counts[:, :, 1] >= counts[:, :, 0]).astype(np.int8)


def concept_mask(labels: NDArray[np.int8], min_classes: int = MIN_CLASSES) -> NDArray[np.bool_]:
    """Which concepts at least ``min_classes`` classes have, shape ``(m,)``. On CUB with 10, this leaves 112 of 312."""
    mask: NDArray[np.bool_] = labels.sum(axis=0, dtype=np.int64) >= min_classes
    return mask


def labels_by_vote(cast: NDArray[np.int8], classes: NDArray[Any], voters: NDArray[np.bool_]) -> NDArray[np.int8]:
    """What each row's class says, shape ``(n, m)``: rows of a class have the same labels, whether they vote or not.

    Args:
        cast: ballots ``(n, m)``.
        voters: which rows' ballots count: those that models train on.
    """
    if not len(cast):
        return np.zeros(cast.shape, np.int8)
    labels: NDArray[np.int8] = class_labels(count(cast[voters], classes[voters], int(classes.max()) + 1))[classes]
    return labels
