"""What a version was trained on: rows, splits and labels, as one immutable artifact.

Pure: arrays in, arrays out. The images lie in the artifact store under the same sample ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from app.datasets.votes import labels_by_vote

SPLITS = ("train", "calibration", "test")
UNKNOWN = -1
_FORMAT = {"format": "modelmend.snapshot.1"}
_FORMAT_WITH_VOTES = {"format": "modelmend.snapshot.2"}
_DTYPES = {"sample_ids": np.int64, "splits": np.int8, "classes": np.int32, "concepts": np.int8}


class InvalidSnapshot(ValueError):
    """The arrays, or the bytes, are not a snapshot."""


class InvalidChanges(ValueError):
    """The changes do not fit the snapshot: an unknown row or concept, a row there already, or a contradiction."""


@dataclass(frozen=True)
class AddedSample:
    """A new row. ``concepts`` has one value (0, 1 or ``UNKNOWN``) per concept, ``split`` is an index of ``SPLITS``.

    In changes, the base version's concepts come first, dropped ones too, and then the new ones; those that classes vote
    on have the row's vote (``UNKNOWN`` for none).
    """

    sample_id: int
    split: int
    class_index: int
    concepts: tuple[int, ...]


@dataclass(frozen=True)
class NewConcept:
    """A further concept. ``labels`` are ``(sample id, 0 or 1)`` of rows of the base version; others are unknown."""

    name: str
    labels: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SnapshotChanges:
    """What an edit changes, in ids and in indices of the base version's concepts.

    A fix of a concept that classes vote on is a row's vote from then on (``UNKNOWN`` for none), and no label.
    """

    fixes: tuple[tuple[int, int, int], ...] = ()  # (sample id, concept index, value)
    dropped: tuple[int, ...] = ()  # concept indices
    removed: tuple[int, ...] = ()  # sample ids
    added: tuple[AddedSample, ...] = ()
    new: tuple[NewConcept, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "fixes": [list(fix) for fix in self.fixes],
            "dropped": list(self.dropped),
            "removed": list(self.removed),
            "added": [[row.sample_id, row.split, row.class_index, list(row.concepts)] for row in self.added],
            "new": [[concept.name, [list(label) for label in concept.labels]] for concept in self.new],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SnapshotChanges:
        return cls(
            fixes=tuple((int(sample), int(concept), int(label)) for sample, concept, label in value["fixes"]),
            dropped=tuple(map(int, value["dropped"])),
            removed=tuple(map(int, value["removed"])),
            added=tuple(
                AddedSample(int(sample), int(split), int(class_index), tuple(map(int, concepts)))
                for sample, split, class_index, concepts in value["added"]
            ),
            new=tuple(
                NewConcept(str(name), tuple((int(sample), int(label)) for sample, label in labels))
                for name, labels in value["new"]
            ),
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Rows in ascending order of their ids, each id once. The arrays are read-only.

    Attributes:
        sample_ids: int64, shape ``(n,)``.
        splits: int8, shape ``(n,)``, indices of ``SPLITS``.
        classes: int32, shape ``(n,)``.
        concepts: int8, shape ``(n, k)``: 0, 1 or ``UNKNOWN``.
        votes: int8, shape ``(n, v)``: how each row votes (0, 1, ``UNKNOWN`` for not) on the first ``v`` concepts, of
            which its class has one label by the vote of the train rows. None where rows have labels of their own.
    """

    sample_ids: NDArray[np.int64]
    splits: NDArray[np.int8]
    classes: NDArray[np.int32]
    concepts: NDArray[np.int8]
    votes: NDArray[np.int8] | None = None

    def __post_init__(self) -> None:
        n = self.sample_ids.shape[0] if self.sample_ids.ndim == 1 else -1
        for name, dtype in _DTYPES.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape[:1] != (n,) or array.ndim != (2 if name == "concepts" else 1):
                raise InvalidSnapshot(f"{name} has dtype {array.dtype} and shape {array.shape}")
        if not (np.diff(self.sample_ids) > 0).all():
            raise InvalidSnapshot("sample ids must ascend, each once")
        if not _within(self.splits, 0, len(SPLITS) - 1) or not _within(self.concepts, UNKNOWN, 1):
            raise InvalidSnapshot("a split or a concept label is out of its range")
        if (self.classes < 0).any():
            raise InvalidSnapshot("a class index is negative")
        votes = self.votes
        if votes is not None and (
            votes.dtype != np.int8
            or votes.ndim != 2
            or len(votes) != n
            or not 0 < votes.shape[1] <= self.concepts.shape[1]
            or not _within(votes, UNKNOWN, 1)
        ):
            raise InvalidSnapshot(f"votes have dtype {votes.dtype} and shape {votes.shape}, or a value out of range")
        for name in self._arrays:
            frozen = np.ascontiguousarray(getattr(self, name))
            if frozen.flags.writeable:
                frozen = frozen.copy()
                frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)

    @property
    def _arrays(self) -> list[str]:
        return [*_DTYPES, *(["votes"] if self.votes is not None else [])]

    @classmethod
    def by_vote(
        cls,
        sample_ids: NDArray[np.int64],
        splits: NDArray[np.int8],
        classes: NDArray[np.int32],
        votes: NDArray[np.int8],
        concepts: NDArray[np.int8] | None = None,
    ) -> Snapshot:
        """A snapshot whose concepts ``0 … v-1`` are labels of classes, by ``votes`` ``(n, v)`` of its train rows.

        Args:
            concepts: ``(n, k)``, of which the first ``v`` columns are not read; the others are labels of rows.
        """
        labels = labels_by_vote(votes, classes, splits == 0)
        if concepts is not None:
            labels = np.concatenate([labels, concepts[:, votes.shape[1] :]], axis=1)
        return cls(sample_ids, splits, classes, labels, votes if votes.shape[1] else None)

    @classmethod
    def from_rows(cls, rows: Iterable[AddedSample], k: int) -> Snapshot:
        """A snapshot of ``rows`` in any order, with ``k`` concepts."""
        ordered = sorted(rows, key=lambda row: row.sample_id)
        return cls(
            np.array([row.sample_id for row in ordered], np.int64),
            np.array([row.split for row in ordered], np.int8),
            np.array([row.class_index for row in ordered], np.int32),
            np.array([row.concepts for row in ordered], np.int8).reshape(len(ordered), k),
        )

    def __len__(self) -> int:
        return int(self.sample_ids.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        names = self._arrays
        return names == other._arrays and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """SHA-256 of :meth:`to_bytes`, in hex: the name of the artifact."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        """Rows per split."""
        return {name: int((self.splits == code).sum()) for code, name in enumerate(SPLITS)}

    def rows(self, split: str) -> NDArray[np.intp]:
        """Positions (not ids) of the rows of a split, ascending."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    @property
    def own_labels(self) -> NDArray[np.int8]:
        """What each row says of itself, ``(n, k)``: its votes, and the labels on which nobody votes."""
        if self.votes is None:
            return self.concepts
        return np.concatenate([self.votes, self.concepts[:, self.votes.shape[1] :]], axis=1)

    def to_bytes(self) -> bytes:
        """The snapshot as safetensors; equal snapshots have equal bytes."""
        # One metadata entry only: the order of several is not fixed by the format.
        metadata = _FORMAT if self.votes is None else _FORMAT_WITH_VOTES
        return bytes(save_tensors({name: getattr(self, name) for name in self._arrays}, metadata=metadata))

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """The inverse of :meth:`to_bytes`.

        Raises:
            InvalidSnapshot: the bytes are not a snapshot.
        """
        try:
            tensors = load_tensors(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        except (SafetensorError, ValueError) as error:
            raise InvalidSnapshot("not safetensors") from error
        expected = _FORMAT if tensors.keys() == _DTYPES.keys() else _FORMAT_WITH_VOTES
        if tensors.keys() - {"votes"} != _DTYPES.keys() or header.get("__metadata__") != expected:
            raise InvalidSnapshot("safetensors of something else")
        return cls(**tensors)

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        return cls.from_bytes(path.read_bytes())

    def apply(self, changes: SnapshotChanges) -> Snapshot:
        """The snapshot after an edit; the order of the changes within ``changes`` does not matter.

        A removed row stays removed and a dropped concept dropped, whatever was fixed in it. New concepts are the last
        columns, in their order. Where classes vote, the votes of the rows that remain or come are counted anew, and
        every row of a class has the label that won: what registering the edited rows would give.

        Raises:
            InvalidChanges: see there; also when two fixes of one label differ, or when none of the concepts is kept.
        """
        n, k = self.concepts.shape
        concepts = self.concepts.copy()
        wanted = _settled_fixes(changes.fixes)
        fixed = self._positions(sample_id for sample_id, _ in wanted)
        columns = np.fromiter((concept for _, concept in wanted), np.int64, len(wanted))
        values = np.fromiter(wanted.values(), np.int64, len(wanted))
        if not _within(columns, 0, k - 1) or not _within(values, UNKNOWN, 1):
            raise InvalidChanges("a fix names no concept of the snapshot, or a value other than 0, 1 and unknown")
        v = 0 if self.votes is None else self.votes.shape[1]
        votes = np.empty((n, 0), np.int8) if self.votes is None else self.votes.copy()
        voted = columns < v
        votes[fixed[voted], columns[voted]] = values[voted]
        concepts[fixed[~voted], columns[~voted]] = values[~voted]
        concepts = np.concatenate([concepts, self._new_columns(changes.new)], axis=1)

        if not _within(np.array(changes.dropped, np.int64), 0, k - 1):
            raise InvalidChanges("a dropped concept is not in the snapshot")
        columns_kept = np.setdiff1d(np.arange(concepts.shape[1]), np.array(changes.dropped, np.int64))
        if k and not (columns_kept < k).any():
            raise InvalidChanges("no concept would be left")
        rows_kept = np.ones(n, bool)
        rows_kept[self._positions(changes.removed)] = False

        added = _added_rows(changes.added, concepts.shape[1])
        sample_ids = np.concatenate([self.sample_ids[rows_kept], added.sample_ids])
        # A removed row's id may not come back in the same edit either: ids are never used twice.
        if np.isin(added.sample_ids, self.sample_ids).any():
            raise InvalidChanges("an added row is there already")
        order = np.argsort(sample_ids, kind="stable")
        return Snapshot.by_vote(
            sample_ids[order],
            np.concatenate([self.splits[rows_kept], added.splits])[order],
            np.concatenate([self.classes[rows_kept], added.classes])[order],
            np.concatenate([votes[rows_kept], added.concepts[:, :v]])[order][:, columns_kept[columns_kept < v]],
            np.concatenate([concepts[rows_kept], added.concepts])[order][:, columns_kept],
        )

    def without(self, sample_ids: Iterable[int]) -> Snapshot:
        """The other rows with the labels that they have: no vote is counted anew."""
        kept = np.ones(len(self), bool)
        kept[self._positions(sample_ids)] = False
        return Snapshot(**{name: getattr(self, name)[kept] for name in self._arrays})

    def _new_columns(self, new: tuple[NewConcept, ...]) -> NDArray[np.int8]:
        columns = np.full((len(self), len(new)), UNKNOWN, np.int8)
        for j, concept in enumerate(new):
            labels = dict(concept.labels)
            if len(labels) < len(set(concept.labels)) or not set(labels.values()) <= {0, 1}:
                raise InvalidChanges("two labels of one row differ, or a label is neither 0 nor 1")
            columns[self._positions(labels), j] = list(labels.values())
        return columns

    def _positions(self, sample_ids: Iterable[int]) -> NDArray[np.intp]:
        wanted = np.array(list(sample_ids), np.int64)
        positions = np.searchsorted(self.sample_ids, wanted)
        inside = positions < len(self)
        if not inside.all() or not (self.sample_ids[positions] == wanted).all():
            raise InvalidChanges("a row is not in the snapshot")
        return positions


def _settled_fixes(fixes: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    settled: dict[tuple[int, int], int] = {}
    for sample_id, concept, value in fixes:
        if settled.setdefault((sample_id, concept), value) != value:
            raise InvalidChanges("two fixes of one label differ")
    return settled


def _added_rows(added: tuple[AddedSample, ...], k: int) -> Snapshot:
    if any(len(row.concepts) != k for row in added):
        raise InvalidChanges("an added row has another number of concepts")
    try:
        return Snapshot.from_rows(added, k)
    except (InvalidSnapshot, OverflowError) as error:
        raise InvalidChanges(f"the added rows are not valid: {error}") from error


def _within(array: NDArray[Any], low: int, high: int) -> bool:
    return not array.size or (int(array.min()) >= low and int(array.max()) <= high)
