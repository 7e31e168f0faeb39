"""Test metrics of a model: concepts first, then classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1

Counts = NDArray[np.integer[Any]]


def concept_metrics(
    probabilities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], names: Sequence[str]
) -> dict[str, Any]:
    """F1 and accuracy per concept, and their means over concepts that have a known label.

    Args:
        probabilities: ``[n, k]``; 0.5 and above counts as present.
        labels: ``[n, k]`` of 0, 1 or −1 (unknown, left out).
        names: ``k`` concept names.
    """
    # Counts for all concepts at once: a call of a metrics library per concept costs more than a small edit.
    known, present, predicted = labels != UNKNOWN, labels == 1, probabilities >= 0.5
    rows = known.sum(axis=0)
    right = ((predicted == present) & known).sum(axis=0)
    f1 = _f1(((predicted & present) & known).sum(axis=0), (predicted & known).sum(axis=0), present.sum(axis=0))
    per_concept: dict[str, dict[str, float | int]] = {
        name: {"f1": float(f1[j]), "accuracy": float(right[j] / rows[j]), "rows": int(rows[j])}
        for j, name in enumerate(names)
        if rows[j]
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
    there, said, right = (
        np.bincount(values, minlength=num_classes) for values in (classes, predicted, classes[classes == predicted])
    )
    return {
        "label_f1": float(_f1(right, said, there)[there > 0].mean()),
        "label_accuracy": float(right.sum() / len(classes)),
    }


def _f1(right: Counts, predicted: Counts, present: Counts) -> NDArray[np.float64]:
    """Twice the hits over predicted and present; 0 where there is neither."""
    return np.asarray(2 * right / np.maximum(predicted + present, 1), dtype=np.float64)
