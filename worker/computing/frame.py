"""The data of an edit, before and after it."""

from __future__ import annotations

from dataclasses import replace

from torch.nn.functional import pad

from app.datasets.snapshots import InvalidChanges, Snapshot, SnapshotChanges
from worker.computing.workbench import Workbench
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.tasks import TaskFailure


class Frame:
    """The data of an edit in one frame of columns, and as the edited version sees it.

    The frame's columns are the base version's, dropped ones too, and then those of new concepts.

    Args:
        concepts: names of the base version's columns.
        before: its data.

    Raises:
        TaskFailure: the changes do not apply to the data, or leave a split empty.

    Attributes:
        concepts: names of the frame's columns.
        base_train: train rows before, in the base version's columns.
        train: rows before and after; new concepts unknown before.
        calibration, test: held-out rows of the edited data set; dropped concepts unknown in ``calibration``.
        test_after: test rows in the edited version's columns.
        kept: columns that are not dropped, new ones among them: the edited version's, in its order.
    """

    def __init__(self, bench: Workbench, concepts: list[str], before: Snapshot, changes: SnapshotChanges) -> None:
        try:
            self.snapshot_after = before.apply(changes)
            in_frame = before.apply(replace(changes, dropped=()))
        except InvalidChanges as error:
            raise TaskFailure("edit_no_longer_applies", str(error)) from error
        self.concepts = [*concepts, *(concept.name for concept in changes.new)]
        new = tuple(range(len(concepts), len(self.concepts)))
        self.dropped = tuple(sorted(set(changes.dropped)))
        self.kept = [j for j in range(len(self.concepts)) if j not in set(self.dropped)]
        self.concepts_after = [self.concepts[j] for j in self.kept]
        self.base_train = bench.rows(before, "train")
        train_before = _with_unknown(self.base_train, len(new))
        self.train = EditedData(train_before, self._masked(bench.rows(in_frame, "train")), self.dropped, new)
        self.calibration = self._masked(bench.rows(in_frame, "calibration"))
        self.test = bench.rows(in_frame, "test")
        self.test_after = bench.rows(self.snapshot_after, "test")

    def _masked(self, rows: LabelledImages) -> LabelledImages:
        concepts = rows.concepts.clone()
        concepts[:, list(self.dropped)] = UNKNOWN
        return replace(rows, concepts=concepts)


def _with_unknown(rows: LabelledImages, count: int) -> LabelledImages:
    """The same images, with ``count`` further columns of which nothing is known."""
    return replace(rows, concepts=pad(rows.concepts, (0, count), value=UNKNOWN)) if count else rows
