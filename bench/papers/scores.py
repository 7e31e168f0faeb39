"""What a model is worth on test rows, and its label loss by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rivals import Settled
from torch import Tensor

from papers.states import in_columns
from worker.cbm.metrics import concept_metrics, label_metrics
from worker.cbm.training import predict_logits
from worker.data.tensors import LabelledImages
from worker.insight.importance import LabelledConcepts, mean_losses


@dataclass(frozen=True)
class Scores:
    """F1 as in the project's versions: macro over classes that the rows have, and over concepts."""

    label_f1: float
    label_accuracy: float
    concept_f1: float


def scores_of(model: Settled, rows: LabelledImages, columns: Sequence[int], classes: int) -> Scores:
    """Args:
    rows: in all columns.
    columns: that the model has.
    """
    probabilities, logits = predictions(model, rows)
    labels = label_metrics(logits.argmax(dim=1).cpu().numpy(), rows.classes.cpu().numpy(), classes)
    known = in_columns(rows, columns).concepts.cpu().numpy()
    concepts = concept_metrics(probabilities.cpu().numpy(), known, [str(column) for column in columns])
    return Scores(labels["label_f1"], labels["label_accuracy"], concepts["concept_f1"])


def predictions(model: Settled, rows: LabelledImages) -> tuple[Tensor, Tensor]:
    """Concept probabilities and class logits."""
    probabilities = torch.sigmoid(predict_logits(model[0], rows.images))
    return probabilities, model[1].logits(probabilities)


def label_losses(model: Settled, rows: LabelledImages, classes: int) -> Tensor:
    """Mean cross-entropy over all rows, then over those of each class ``[1 + classes]``; NaN for one without any."""
    probabilities, _ = predictions(model, rows)
    return mean_losses(model[1], LabelledConcepts(probabilities, rows.classes), classes).cpu()
