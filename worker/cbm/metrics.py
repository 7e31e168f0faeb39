"""Test metrics of a model: concepts first, then classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score

UNKNOWN = -1


def concept_metrics(
    probabilities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], names: Sequence[str]
) -> dict[str, Any]:
    """F1 and accuracy per concept, and their means over concepts that have a known label.

    Args:
        probabilities: ``[n, k]``; 0.5 and above counts as present.
        labels: ``[n, k]`` of 0, 1 or −1 (unknown, left out).
        names: ``k`` concept names.
    """
    per_concept: dict[str, dict[str, float | int]] = {}
    for j, name in enumerate(names):
        known = labels[:, j] != UNKNOWN
        if not known.any():
            continue
        truth, predicted = labels[known, j], probabilities[known, j] >= 0.5
        per_concept[name] = {
            "f1": float(f1_score(truth, predicted, zero_division=0.0)),
            "accuracy": float(accuracy_score(truth, predicted)),
            "rows": int(known.sum()),
        }
    scores = list(per_concept.values())
    return {
        "concept_f1": float(np.mean([s["f1"] for s in scores])) if scores else 0.0,
        "concept_accuracy": float(np.mean([s["accuracy"] for s in scores])) if scores else 0.0,
        "concepts": per_concept,
    }


def label_metrics(
    predicted: NDArray[np.integer[Any]], classes: NDArray[np.integer[Any]], num_classes: int
) -> dict[str, float]:
    """Macro F1 over the classes present in ``classes``, and accuracy."""
    present = [c for c in range(num_classes) if (classes == c).any()]
    return {
        "label_f1": float(f1_score(classes, predicted, labels=present, average="macro", zero_division=0.0)),
        "label_accuracy": float(accuracy_score(classes, predicted)),
    }
