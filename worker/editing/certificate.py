"""How far an edited head can be from one trained anew on the edited data: a bound for one Newton step, and the rest.

After Guo et al. 2020, "Certified Data Removal from Machine Learning Models", theorem 1 and corollary 1, for the
objective of :mod:`worker.cbm.linear_heads`, which is a mean over samples, and for any change of the rows or labels.
Let ``v`` solve ``H v ≈ −∇J(θ̂)`` with ``J`` the objective *after* the edit and ``H`` its Hessian at the old optimum
``θ̂``. Then

    ``∇J(θ̂ + v) = (∇J(θ̂) + H v) + ∫₀¹ (H(θ̂ + tv) − H(θ̂)) v dt``.

The second difference is ``(1/n) Xᵀ diag(m_i (ℓ''(z_i + t a_i) − ℓ''(z_i))) X`` with ``a = X v``. With ``γ`` a
Lipschitz constant of ``ℓ''`` its product with ``v`` is at most ``(γ t / n) ‖X‖₂ ‖a ∘ a‖₂``, and the integral over ``t``
halves that:

    ``‖∇J(θ̂ + v)‖ ≤ ‖∇J(θ̂) + H v‖ + (γ / 2n) ‖X‖₂ ‖a ∘ a‖₂``                             (sharp)
    ``            ≤ ‖∇J(θ̂) + H v‖ + (γ / n) R ‖X‖₂ ‖v‖₂ ‖X v‖₂``,  ``R = max_i ‖x_i‖``     (Guo et al.)

by ``‖a ∘ a‖₂ ≤ max|a_i| ‖a‖₂ ≤ R ‖v‖ ‖a‖₂``. The paper takes ``R = 1`` by scaling the rows, sums over samples where we
average, leaves out the half, and uses ``γ = 1/4``. The least ``γ`` of the logistic loss is
``max|σ''| = 1/(6√3) ≈ 0.096``; the sharp bound uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.cbm.linear_heads import HeadObjective

GAMMA = 0.25
"""The paper's Lipschitz constant of the logistic loss's second derivative."""

SHARP_GAMMA = 1 / (6 * math.sqrt(3))
"""The least one: ``σ'' = σ'(1 − 2σ)`` is greatest in size at ``σ = (1 ± 1/√3)/2``."""

_ROUNDING = 64 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class StepBound:
    """Of one step per concept, each ``[k]``.

    Attributes:
        guo: the paper's bound of the gradient norm after the step, with the row norms that it scales away.
        sharp: the tighter bound.
        residual: the gradient norm that was measured.
    """

    guo: Tensor
    sharp: Tensor
    residual: Tensor


def spectral_norm(features: Tensor) -> float:
    """``‖X‖₂`` of ``X`` ``[n, d]``."""
    if not len(features):
        return 0.0
    gram = features.T @ features if features.shape[0] > features.shape[1] else features @ features.T
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[-1])))


def step_bound(objective: HeadObjective, start: Tensor, after: Tensor, norm: float | None = None) -> StepBound:
    """Bounds of the gradient norms at ``after``, reached from ``start`` by a step along ``v = after − start``.

    Args:
        objective: of the edited data.
        start, after: ``[k, d + 1]``.
        norm: ``‖X‖₂`` where it is known; of all rows, which is no less than of the known ones.

    Cost: three passes over the features, ``O(n d k)``; nothing of the order of a Hessian.
    """
    features = objective.features
    norm = spectral_norm(features) if norm is None else norm
    n = max(1, len(features))
    radius = float(features.norm(dim=1).max()) if len(features) else 0.0
    steps = after - start
    gradients, products = objective.gradients(start), objective.hessian_products(objective.weights(start), steps)
    solver = (gradients + products).norm(dim=1)
    rounding = _ROUNDING * (norm / math.sqrt(n) + gradients.norm(dim=1) + products.norm(dim=1))
    moved = (features @ steps.T) * objective.known
    guo = GAMMA * radius * norm * steps.norm(dim=1) * moved.norm(dim=0) / n
    sharp = SHARP_GAMMA / 2 * norm * moved.square().norm(dim=0) / n
    residual = objective.gradients(after).norm(dim=1)
    return StepBound(solver + rounding + guo, solver + rounding + sharp, residual)
