"""What each concept is worth to the label predictor: how the held-out label loss rises when it is dropped.

The concept predictor stays as it is; the label predictor loses the concept's column, in two ways. *Refitted*: fitted
anew without it, which is the truth and, convex as it is, affordable. *Estimated*: by the paper's one Newton step at
``f̂`` without it, ``f̂ − H⁻¹ ∇J`` with exact gradient and Hessian of the objective whose input lacks the concept (its
theorem on ``f`` at the concept level). As in the paper, a concept's importance is the held-out loss of what results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from worker.cbm.label_predictor import LabelObjective, LabelPredictor, fit_label_predictor

GRADIENT_TOLERANCE = 1e-6
"""Of a refit: with a curvature of at least the weight decay ``λ``, the objective is within ``10⁻¹²/λ`` of its least."""


@dataclass(frozen=True)
class LabelledConcepts:
    """Concept probabilities ``[n, k]`` and classes ``[n]`` of the same rows."""

    probabilities: Tensor
    classes: Tensor


@dataclass(frozen=True)
class DropEffects:
    """Rises of the held-out mean label loss without each concept, ``[k, 1 + classes]``.

    The first column is over all held-out rows, the others over those of each class; NaN for a class without any.
    """

    estimated: Tensor
    refitted: Tensor


def drop_effects(
    label_predictor: LabelPredictor,
    fitted: LabelledConcepts,
    held_out: LabelledConcepts,
    *,
    weight_decay: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DropEffects:
    """The effects of dropping each concept alone.

    Args:
        label_predictor: the minimiser of the objective on ``fitted``.
        fitted: the training rows.
        held_out: rows it was not fitted to.
        weight_decay: of that objective.
        progress: called with (concepts done, concepts).
    """
    num_classes, k = label_predictor.weight.shape
    before = mean_losses(label_predictor, held_out, num_classes)
    estimated, refitted = [], []
    for j in range(k):
        kept = [column for column in range(k) if column != j]
        without = label_predictor.without_concepts([j])
        objective = LabelObjective(fitted.probabilities[:, kept], fitted.classes, num_classes, weight_decay)
        step = newton_step(without, objective)
        anew = fit_label_predictor(
            fitted.probabilities[:, kept],
            fitted.classes,
            num_classes,
            weight_decay=weight_decay,
            start=step if float(objective.value(_joined(step))) < float(objective.value(_joined(without))) else without,
            tolerance=GRADIENT_TOLERANCE,
        )
        unseen = LabelledConcepts(held_out.probabilities[:, kept], held_out.classes)
        estimated.append(mean_losses(step, unseen, num_classes) - before)
        refitted.append(mean_losses(anew, unseen, num_classes) - before)
        progress(j + 1, k)
    return DropEffects(torch.stack(estimated), torch.stack(refitted))


def newton_step(label_predictor: LabelPredictor, objective: LabelObjective) -> LabelPredictor:
    """``f − H⁻¹ ∇J(f)``, exact gradient and Hessian."""
    theta = _joined(label_predictor)
    posterior = objective.posterior(theta)
    gradient = objective.gradient(theta, posterior)
    theta = theta - objective.newton_direction(gradient, posterior, tolerance=GRADIENT_TOLERANCE)
    return LabelPredictor(theta[:, :-1].clone(), theta[:, -1].clone())


def mean_losses(label_predictor: LabelPredictor, rows: LabelledConcepts, num_classes: int) -> Tensor:
    """Mean cross-entropy over all rows, then over the rows of each class ``[1 + classes]``; NaN without rows."""
    logits = label_predictor.logits(rows.probabilities)
    losses = torch.nn.functional.cross_entropy(logits, rows.classes.long(), reduction="none")
    counts = torch.bincount(rows.classes.long(), minlength=num_classes).to(losses.dtype)
    sums = torch.zeros(num_classes, dtype=losses.dtype, device=losses.device)
    sums.index_add_(0, rows.classes.long(), losses)
    return torch.cat([losses.mean()[None], sums / counts])


@dataclass(frozen=True)
class Agreement:
    """How far an estimate puts items into the order of the truth.

    ``top`` and ``bottom`` count the common ones among the ``size`` greatest and the ``size`` least of each.
    """

    size: int
    top: int
    bottom: int
    rank_correlation: float | None


def agreement(estimate: Tensor, truth: Tensor, size: int = 10) -> Agreement:
    """Overlaps as the paper reports them, and Spearman's rank correlation (None where one of the two is constant).

    Args:
        size: of the groups compared; with fewer than ``2 · size`` items, half of them, or the overlap says nothing.
    """
    first, second = (values.double().cpu().numpy() for values in (estimate, truth))
    size = max(1, min(size, len(first) // 2))

    def common(one: NDArray[np.float64], other: NDArray[np.float64]) -> int:
        return len(set(np.argsort(-one, kind="stable")[:size]) & set(np.argsort(-other, kind="stable")[:size]))

    return Agreement(size, common(first, second), common(-first, -second), _rank_correlation(first, second))


def _rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    scale = math.sqrt(float((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / scale if scale else None


def _joined(label_predictor: LabelPredictor) -> Tensor:
    return torch.cat([label_predictor.weight, label_predictor.bias[:, None]], dim=1).to(torch.float64)
