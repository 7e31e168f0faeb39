"""Influences in concept heads on fixed features: there the Hessian is exact, and no curvature has to be estimated.

With a frozen backbone each concept has an objective of its own (:mod:`worker.cbm.linear_heads`) with Hessian
``H_j = Xᵀ diag(m_ij p_ij (1 − p_ij) / n) X + λI``, of which the model is the minimiser. So what
:mod:`worker.insight.labels` and :mod:`worker.insight.suspects` take from ``(F + dI)⁻¹`` comes from ``H_j⁻¹`` here, its
damping the weight decay that the model was trained with. One concept's Hessian is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.cbm.linear_heads import HeadObjective

Progress = Callable[[int, int], None]


def target_gradients(target: HeadObjective, theta: Tensor) -> Tensor:
    """``∇t`` ``[k, d + 1]`` for ``t`` the mean concept loss of the target's rows, without the penalty."""
    return target.gradients(theta) - target.weight_decay * theta


@dataclass(frozen=True)
class HeadSlopes:
    """Attributes:
    logits: ``z`` ``[n, k]``.
    slopes: ``(X s_j)`` ``[n, k]`` along ``s_j = H_j⁻¹ ∇_j t``.
    relative_residual: the worst concept's ``‖H_j s_j − ∇_j t‖ / ‖∇_j t‖``.
    """

    logits: Tensor
    slopes: Tensor
    relative_residual: float


def head_slopes(
    objective: HeadObjective, theta: Tensor, gradients: Tensor, progress: Progress = lambda done, total: None
) -> HeadSlopes:
    """How training rows' logits move along the target's descent.

    Args:
        objective: of the training rows.
        theta: heads with their biases ``[k, d + 1]``.
        gradients: of the target, see :func:`target_gradients`.
        progress: called with (concepts done, concepts).
    """
    weights = objective.weights(theta)
    solution = torch.empty_like(gradients)
    for j in range(len(theta)):
        factor = _cholesky(objective, weights[:, j])
        solution[j] = torch.cholesky_solve(gradients[j, :, None], factor)[:, 0]
        progress(j + 1, len(theta))
    residual = (objective.hessian_products(weights, solution) - gradients).norm(dim=1)
    sizes = gradients.norm(dim=1)
    worst = torch.where(sizes > 0, residual / sizes, 0.0).max()
    return HeadSlopes(objective.features @ theta.T, objective.features @ solution.T, float(worst))


def head_leverages(objective: HeadObjective, theta: Tensor, progress: Progress = lambda done, total: None) -> Tensor:
    """``x_iᵀ H_j⁻¹ x_i`` ``[n, k]``, of logits ``z_ij = x_iᵀ θ_j``; arguments as of :func:`head_slopes`."""
    weights = objective.weights(theta)
    leverages = torch.empty_like(weights)
    for j in range(len(theta)):
        factor = _cholesky(objective, weights[:, j])
        whitened = torch.linalg.solve_triangular(factor, objective.features.T, upper=False)
        leverages[:, j] = whitened.square().sum(dim=0)
        progress(j + 1, len(theta))
    return leverages


def _cholesky(objective: HeadObjective, weights: Tensor) -> Tensor:
    """Lower factor of ``H_j`` for the ``weights`` ``[n]`` of one concept; their mean is their own."""
    return objective.preconditioner(weights[:, None])
