"""How models do on the rows by which an edit is judged, and what attacks learn from them about the removed ones.

Everything about one model comes from one forward pass over the test rows and one over each group of edited rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.metrics import concept_metrics
from worker.cbm.training import concept_losses, predict_logits
from worker.computing.frame import Frame
from worker.computing.frozen import is_frozen
from worker.computing.workbench import scores
from worker.data.tensors import LabelledImages
from worker.evidence.audit import Losses, References, attacks, design, readings
from worker.evidence.findings import findings
from worker.evidence.membership import RowLosses

CLAIM = "approximate, audited"
"""What an edit may claim: its effect is measured, and what is measured is not a proof."""
CLAIM_OF_HEADS = "exact for the concept heads, given fixed features of the backbone"
"""What an edit of a model with a frozen backbone may claim: its certificate says what that covers, and what not."""


def claim_of(training: Mapping[str, Any]) -> str:
    """What edits of a model with these training settings may claim."""
    return CLAIM_OF_HEADS if is_frozen(training) else CLAIM


def edited_groups(frame: Frame) -> dict[str, LabelledImages]:
    """The edited train rows by what became of them, labels as they are now; withdrawn ones as they were, and alone."""
    data = frame.train
    groups = {
        "removed": data.before.take(data.removed),
        "fixed": data.after.take(data.corrected),
        "withdrawn": data.withdrawals(),
        "added": data.after.take(data.added),
    }
    return {name: rows for name, rows in groups.items() if len(rows)}


class Measured:
    """One model's outputs on the test rows and the edited ones.

    Args:
        groups: see :func:`edited_groups`; shared by the models that are compared.
        edited: whether the model has the edited version's columns, or the base version's.
    """

    def __init__(
        self,
        frame: Frame,
        groups: Mapping[str, LabelledImages],
        model: ConceptPredictor,
        label_predictor: LabelPredictor,
        *,
        edited: bool,
    ) -> None:
        self._frame = frame
        self._groups = groups
        self._model = model
        self._label_predictor = label_predictor
        self._edited = edited
        self._shared = [j for j in frame.kept if j not in frame.train.new]
        """Columns, in the frame's order, that both versions have: what models are compared by."""

    @cached_property
    def test_logits(self) -> Tensor:
        """Concept logits of the test rows in the model's columns."""
        return predict_logits(self._model, self._frame.test.images)

    @cached_property
    def group_logits(self) -> dict[str, Tensor]:
        """Concept logits of each group in the model's columns."""
        return {name: predict_logits(self._model, rows.images) for name, rows in self._groups.items()}

    def test_metrics(self, concepts: list[str], *, shared: bool = False) -> dict[str, Any]:
        """Test metrics: of an edited model over all its columns, of the base version over those that both have.

        Args:
            concepts: names of the model's columns.
            shared: over the columns that both versions have in either case, so that scores compare.
        """
        rows = self._frame.test_after if self._edited else self._frame.test
        kept = self._columns if shared or not self._edited else None
        return scores(self.test_logits, self._label_predictor, rows, concepts, kept)

    def mean_loss(self, group: str) -> float:
        """Mean concept loss of a group, over the columns that both versions have."""
        return float(self._concept_losses(self.group_logits[group], self._groups[group]).mean())

    def concept_f1(self) -> tuple[float, float]:
        """Over the columns that both versions have: of the removed rows, and of the test rows."""
        names = [str(j) for j in range(len(self._shared))]
        found = []
        for logits, rows in (
            (self.group_logits["removed"], self._groups["removed"]),
            (self.test_logits, self._frame.test),
        ):
            probabilities = torch.sigmoid(logits[:, self._columns]).cpu().numpy()
            found.append(concept_metrics(probabilities, rows.concepts[:, self._shared].cpu().numpy(), names))
        return found[0]["concept_f1"], found[1]["concept_f1"]

    def losses(self) -> Losses:
        """Losses of removed rows and of test rows, for attacks."""
        return Losses(
            self._row_losses(self.group_logits["removed"], self._groups["removed"]),
            self._row_losses(self.test_logits, self._frame.test),
        )

    @property
    def _columns(self) -> list[int]:
        """Where the shared columns are in the model's logits: an edited model has new ones last."""
        return list(range(len(self._shared))) if self._edited else self._shared

    def _concept_losses(self, logits: Tensor, rows: LabelledImages) -> Tensor:
        return concept_losses(logits[:, self._columns], rows.concepts[:, self._shared])

    def _row_losses(self, logits: Tensor, rows: LabelledImages) -> RowLosses:
        classes = self._label_predictor.logits(torch.sigmoid(logits))
        return RowLosses(
            concepts=self._concept_losses(logits.double(), rows).cpu().numpy(),
            known=(rows.concepts[:, self._shared] >= 0).sum(dim=1).cpu().numpy(),
            label=cross_entropy(classes.double(), rows.classes, reduction="none").cpu().numpy(),
        )


def edited_rows(groups: Mapping[str, LabelledImages], models: Mapping[str, Measured]) -> dict[str, Any]:
    """Mean concept loss of each group of edited rows under each model: ``{"removed": {"rows", "loss_before", …}}``."""
    return {
        name: {"rows": len(rows), **{f"loss_{when}": model.mean_loss(name) for when, model in models.items()}}
        for name, rows in groups.items()
    }


def membership(evidence: dict[str, Any]) -> dict[str, Any] | None:
    """The evidence's shortest form: the loss attack's area on the concepts; None if no train row was removed."""
    loss = evidence["attacks"].get("loss")
    if loss is None:
        return None
    found = loss["concepts"] or {}
    return {
        "attack": "loss",
        "members": evidence["members"],
        "non_members": evidence["non_members"],
        **{f"auc_{when}": reading["auc"] for when, reading in found.items()},
    }


def audited(
    frame: Frame,
    models: Mapping[str, Sequence[Measured]],
    *,
    level: str,
    seed: int,
    references: References | None,
    claim: str,
) -> dict[str, Any]:
    """Evidence of forgetting: attacks on removed train rows against test rows, under each model, and findings.

    Args:
        models: ``before`` and ``after`` one each, in a comparison ``retrained`` any number.
        level: ``standard`` or ``full``, for the report.
        seed: of the split of test rows and of the reference models, for the report.
        references: set for ``full``, where rows were removed.
        claim: of the edit, for the report.
    """
    members = len(frame.train.removed)
    evidence: dict[str, Any] = {
        "level": level,
        "claim": claim,
        "members": members,
        "non_members": len(frame.test),
        "attacks": {},
        "rmia": None if references is None else {"seed": seed, **design(references, len(frame.train.after))},
        "findings": [],
    }
    if not members:
        return evidence
    found = attacks({when: [one.losses() for one in some] for when, some in models.items()}, references)
    return evidence | {
        "attacks": readings(found),
        "findings": findings(found, models["before"][0].concept_f1()),
    }
