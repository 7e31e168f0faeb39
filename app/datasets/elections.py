"""What an edit does to labels on which classes vote: the races that it turns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.datasets.snapshots import Snapshot, SnapshotChanges


@dataclass(frozen=True)
class Flip:
    """A class that has another label of a concept after an edit.

    Attributes:
        concept: index in the base version's concepts.
        label: 0 or 1, after the edit; before, it was the other.
        rows: that were there before and stay.
    """

    class_index: int
    concept: int
    label: int
    rows: int


def flips(before: Snapshot, changes: SnapshotChanges) -> list[Flip]:
    """The races that ``changes`` turn, by class and concept; none for concepts that they drop.

    Raises:
        InvalidChanges: they do not apply.
    """
    if before.votes is None:
        return []
    after = before.apply(changes)
    kept = [j for j in range(before.votes.shape[1]) if j not in changes.dropped]
    _, old, new = np.intersect1d(before.sample_ids, after.sample_ids, assume_unique=True, return_indices=True)
    turned = before.concepts[old][:, kept] != after.concepts[new][:, : len(kept)]
    classes = after.classes[new]
    found = []
    for class_index in np.unique(classes[turned.any(axis=1)]).tolist():
        members = np.flatnonzero(classes == class_index)
        for column in np.flatnonzero(turned[members[0]]).tolist():
            label = int(after.concepts[new[members[0]], column])
            found.append(Flip(class_index, kept[column], label, len(members)))
    return found


def fallen_below(before: Snapshot, after: Snapshot, kept: Sequence[int], min_classes: int) -> list[int]:
    """Voted concepts that at least ``min_classes`` classes had and fewer have after an edit.

    They stay concepts: to drop one is an edit of its own.

    Args:
        kept: for each concept of ``after`` that ``before`` has, its index there.

    Returns:
        Indices in ``before``.
    """
    if before.votes is None:
        return []
    v = before.votes.shape[1]
    had, has = _classes_with(before), _classes_with(after)
    return [j for column, j in enumerate(kept) if j < v and had[j] >= min_classes > has[column]]


def _classes_with(snapshot: Snapshot) -> NDArray[np.int64]:
    """In how many of the classes that have rows each concept is present, ``(k,)``."""
    _, first = np.unique(snapshot.classes, return_index=True)
    present: NDArray[np.int64] = (snapshot.concepts[first] == 1).sum(axis=0)
    return present
