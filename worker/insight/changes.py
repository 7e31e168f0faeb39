"""What two versions of a model say differently about the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Predictions:
    """Concept probabilities ``[n, k]`` and predicted classes ``[n]`` of some rows."""

    probabilities: Tensor
    classes: Tensor


@dataclass(frozen=True)
class Changes:
    """Per row: the largest and the mean ``|Δp|`` over concepts, the concept of the largest, and whether another class
    is predicted; all ``[n]``."""

    largest: Tensor
    mean: Tensor
    concept: Tensor
    relabelled: Tensor

    def order(self) -> Tensor:
        """Rows with another predicted class first, each group by the largest ``|Δp|``, falling."""
        return (self.largest + 2 * self.relabelled.to(self.largest)).argsort(descending=True, stable=True)


def changes(before: Predictions, after: Predictions) -> Changes:
    """From one version to the other; rows and concepts are the same in both."""
    distances = (after.probabilities - before.probabilities).abs()
    largest, concept = distances.max(dim=1)
    return Changes(largest, distances.mean(dim=1), concept, before.classes != after.classes)
