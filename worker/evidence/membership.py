"""Membership attacks' scores: what an attacker computes for a row from a model's outputs. Higher says "member".

Two outputs can be attacked: the concepts, with the product of the known concepts' probabilities as likelihood, and
the label, with the softmax probability of the row's class. The loss attack takes the likelihood as it is. Where
likelihoods are averaged over models (:mod:`worker.evidence.rmia`), the concepts' is softened to the geometric mean over
the row's known concepts, ``exp(−loss/known)``: a product over a hundred concepts is decided by the hardest one and
spans dozens of orders of magnitude, and a mean of such numbers is the largest of them. For one model, and rows with
equally many known concepts, this changes no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from worker.evidence.auc import FloatArray, Scores, auc

Losses = NDArray[np.floating[Any]]
Output = Literal["concepts", "label"]
OUTPUTS: tuple[Output, ...] = ("concepts", "label")


@dataclass(frozen=True)
class RowLosses:
    """Losses of rows under one model, float64.

    Attributes:
        concepts: summed over the known concepts ``[n]``.
        known: how many those are ``[n]``.
        label: cross-entropy of the class ``[n]``.
    """

    concepts: FloatArray
    known: NDArray[np.int64]
    label: FloatArray

    def there(self, output: Output) -> NDArray[np.bool_]:
        """Which rows the output can be attacked on: one without concept labels has no concept loss."""
        return self.known > 0 if output == "concepts" else np.ones(len(self.label), dtype=bool)

    def of(self, output: Output) -> FloatArray:
        """Losses of those rows."""
        return (self.concepts if output == "concepts" else self.label)[self.there(output)]

    def log_likelihoods(self, output: Output) -> FloatArray:
        """Log-likelihoods of all rows ``[n]``, softened for the concepts (see above)."""
        return -self.label if output == "label" else -self.concepts / np.maximum(self.known, 1)

    def take(self, rows: NDArray[np.integer[Any]] | NDArray[np.bool_]) -> RowLosses:
        """The losses of some rows."""
        return RowLosses(self.concepts[rows], self.known[rows], self.label[rows])


def loss_attack(members: RowLosses, non_members: RowLosses, output: Output) -> Scores:
    """The attack "a lower loss means a member" (Yeom et al. 2018)."""
    return Scores(-members.of(output), -non_members.of(output))


def loss_attack_auc(members: Losses, non_members: Losses) -> float:
    """Area under the ROC curve of the loss attack.

    Args:
        members: per-row losses ``[m]`` of rows that were trained on.
        non_members: per-row losses ``[n]`` of rows that were not.

    Returns:
        0.5 when the attack learns nothing, 1 when it is always right; below 0.5 members look *less* fitted than
        unseen rows.

    Raises:
        ValueError: a side is empty.
    """
    return auc(Scores(-np.asarray(members, dtype=np.float64), -np.asarray(non_members, dtype=np.float64)))
