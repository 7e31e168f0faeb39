"""The data of an edit, before and after it."""

from __future__ import annotations

from dataclasses import replace

import torch

from app.datasets.snapshots import InvalidChanges, Snapshot, SnapshotChanges
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.computing.workbench import Workbench
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.tasks import TaskFailure


class Frame:
    """The data of an edit in the base version's columns, and as the edited version sees it.

    Args:
        concepts: names of the base version's columns.
        before: its data.

    Raises:
        TaskFailure: the changes do not apply to the data, or leave a split empty.

    Attributes:
        train: rows before and after.
        calibration, test: held-out rows of the edited data set; dropped concepts unknown in ``calibration``.
        test_after: test rows in the edited version's columns.
        kept: columns that are not dropped.
    """

    def __init__(self, bench: Workbench, concepts: list[str], before: Snapshot, changes: SnapshotChanges) -> None:
        try:
            self.snapshot_after = before.apply(changes)
            in_base_columns = before.apply(replace(changes, dropped=()))
        except InvalidChanges as error:
            raise TaskFailure("edit_no_longer_applies", str(error)) from error
        self.dropped = tuple(sorted(set(changes.dropped)))
        self.kept = [j for j in range(len(concepts)) if j not in set(self.dropped)]
        self.concepts_after = [concepts[j] for j in self.kept]
        train_before = bench.rows(before, "train")
        self.train = EditedData(train_before, self._masked(bench.rows(in_base_columns, "train")), self.dropped)
        self.calibration = self._masked(bench.rows(in_base_columns, "calibration"))
        self.test = bench.rows(in_base_columns, "test")
        self.test_after = bench.rows(self.snapshot_after, "test")

    def losses(self, model: ConceptPredictor, rows: LabelledImages) -> torch.Tensor:
        """Concept losses of rows in base columns, over the kept concepts only, so that models compare."""
        logits = predict_logits(model, rows.images)
        if logits.shape[1] != len(self.kept):
            logits = logits[:, self.kept]
        return concept_losses(logits, rows.concepts[:, self.kept])

    def _masked(self, rows: LabelledImages) -> LabelledImages:
        concepts = rows.concepts.clone()
        concepts[:, list(self.dropped)] = UNKNOWN
        return replace(rows, concepts=concepts)
