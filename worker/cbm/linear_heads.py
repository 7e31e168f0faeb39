"""Concept heads on fixed features: one L2-regularised logistic regression per concept, converged in float64.

With features ``x_i`` (a 1 appended for the bias) the objective of concept ``j`` over ``n`` rows is
``J_j(θ) = (1/n) Σ_i m_ij BCE(x_iᵀθ, c_ij) + (λ/2)‖θ‖²``: the concept objective of training, of which with a fixed
backbone nothing couples the concepts. ``m_ij = 0`` where the label is unknown; ``n`` counts every row. For ``λ > 0`` it
is ``λ``-strongly convex, so ``‖θ − θ*‖ ≤ ‖∇J_j(θ)‖ / λ`` says how far the minimiser is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.data.tensors import LabelledImages

TOLERANCE = 1e-10
"""Gradient norm of a concept at which it has converged; double precision reaches about 1e-15 of the features' size."""

_LOOSEST, _TIGHTEST = 1e-2, 1e-5
_TINY = 1e-300  # keeps concepts whose residual is 0 out of 0/0


def feature_matrix(rows: LabelledImages) -> Tensor:
    """``X`` ``[n, d + 1]`` in double precision, from rows whose images are features; the last column is 1."""
    features = rows.images.flatten(1).double()
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


@dataclass(frozen=True)
class HeadObjective:
    """``J_j`` of several concepts at once.

    Attributes:
        features: ``X`` ``[n, d + 1]``.
        labels: ``[n, k]``, 0, 1 or −1 unknown.
        weight_decay: ``λ``.
    """

    features: Tensor
    labels: Tensor
    weight_decay: float

    def __post_init__(self) -> None:
        if not self.weight_decay > 0:
            raise ValueError("heads on fixed features need a positive weight decay")

    def of(self, concepts: Tensor) -> HeadObjective:
        """The objective of some of the concepts."""
        return HeadObjective(self.features, self.labels[:, concepts], self.weight_decay)

    @property
    def known(self) -> Tensor:
        return (self.labels >= 0).to(self.features.dtype)

    def values(self, theta: Tensor) -> Tensor:
        """``J_j`` ``[k]`` at ``theta`` ``[k, d + 1]``."""
        z = self.features @ theta.T
        losses = torch.nn.functional.softplus(z) - self.labels.clamp_min(0) * z
        return (losses * self.known).sum(dim=0) / len(z) + 0.5 * self.weight_decay * theta.square().sum(dim=1)

    def gradients(self, theta: Tensor) -> Tensor:
        """``∇J_j`` ``[k, d + 1]``."""
        residuals = (torch.sigmoid(self.features @ theta.T) - self.labels) * self.known
        return residuals.T @ self.features / len(self.features) + self.weight_decay * theta

    def weights(self, theta: Tensor) -> Tensor:
        """``m_ij p_ij (1 − p_ij) / n`` ``[n, k]``: ``H_j(θ_j) = Xᵀ diag(weights_j) X + λI``."""
        p = torch.sigmoid(self.features @ theta.T)
        return p * (1 - p) * self.known / len(self.features)

    def hessian_products(self, weights: Tensor, vectors: Tensor) -> Tensor:
        """``H_j v_j`` ``[k, d + 1]`` for the given :meth:`weights`."""
        curved = weights * (self.features @ vectors.T)
        return curved.T @ self.features + self.weight_decay * vectors

    def preconditioner(self, weights: Tensor) -> Tensor:
        """Lower Cholesky factor ``[d + 1, d + 1]`` of the concepts' mean Hessian."""
        weighted = self.features * weights.mean(dim=1, keepdim=True).sqrt()
        hessian = weighted.T @ weighted
        hessian.diagonal().add_(self.weight_decay)
        factor: Tensor = torch.linalg.cholesky(hessian)
        return factor


@dataclass(frozen=True)
class Fit:
    """Attributes:
    theta: ``[k, d + 1]``, the bias last.
    first_step: what the first Newton step led to, ``[k, d + 1]``; the start where it was converged already.
    steps: Newton's, of the slowest concept.
    products: Hessian products, each of all concepts that had not converged.
    """

    theta: Tensor
    first_step: Tensor
    steps: int
    products: int


def fit_heads(objective: HeadObjective, start: Tensor, *, tolerance: float = TOLERANCE, max_steps: int = 100) -> Fit:
    """The minimisers, by Newton's method with backtracking from ``start`` ``[k, d + 1]``, all concepts side by side.

    A step solves ``H_j v_j = −∇J_j`` by conjugate gradients with exact products, preconditioned by one Cholesky factor
    of the mean Hessian; for a single concept that is the Hessian itself. Measured for n = 2,000, d = 512, k = 112, this
    is nine times as fast as a factorisation per concept (``n d² k`` operations), and needs no memory for them.

    Raises:
        RuntimeError: a gradient norm is above ``tolerance`` after ``max_steps``.
    """
    theta, first = start.clone(), start.clone()
    products = 0
    for step in range(max_steps + 1):
        gradients = objective.gradients(theta)
        active = (gradients.norm(dim=1) > tolerance).nonzero().squeeze(1)
        if not len(active):
            return Fit(theta, first, step, products)
        mine, now, gradients = objective.of(active), theta[active], gradients[active]
        directions, iterations = _newton_directions(mine, now, gradients)
        products += iterations
        now = now + _lengths(mine, now, directions, gradients)[:, None] * directions
        theta[active] = now
        if step == 0:
            first[active] = now
    raise RuntimeError(f"concept heads: no convergence in {max_steps} Newton steps")


def _newton_directions(objective: HeadObjective, theta: Tensor, gradients: Tensor) -> tuple[Tensor, int]:
    """``−H_j⁻¹ ∇J_j`` ``[k, d + 1]`` to a relative residual that keeps Newton superlinear, and the products it took."""
    weights = objective.weights(theta)
    factor = objective.preconditioner(weights)
    sizes = gradients.norm(dim=1)
    targets = sizes * sizes.sqrt().clamp(_TIGHTEST, _LOOSEST)
    solution, residual = torch.zeros_like(gradients), -gradients
    preconditioned = torch.cholesky_solve(residual.T, factor).T
    direction, energy = preconditioned, (residual * preconditioned).sum(dim=1)
    products = 0
    while products < 10 * theta.shape[1]:
        product = objective.hessian_products(weights, direction)
        products += 1
        step = energy / (direction * product).sum(dim=1).clamp_min(_TINY)
        solution = solution + step[:, None] * direction
        residual = residual - step[:, None] * product
        if bool((residual.norm(dim=1) <= targets).all()):
            break
        preconditioned = torch.cholesky_solve(residual.T, factor).T
        energy, previous = (residual * preconditioned).sum(dim=1), energy
        direction = preconditioned + (energy / previous.clamp_min(_TINY))[:, None] * direction
    return solution, products


def _lengths(objective: HeadObjective, theta: Tensor, directions: Tensor, gradients: Tensor) -> Tensor:
    """Step lengths ``[k]``, halved until each objective falls; 1 near the minimum, where it cannot fall measurably."""
    values = objective.values(theta)
    slopes = (gradients * directions).sum(dim=1)
    lengths = torch.ones_like(values)
    slack = 1e-13 * values.abs().clamp_min(1e-300)
    for _ in range(40):
        tried = objective.values(theta + lengths[:, None] * directions)
        short = ~(tried <= values + 1e-4 * lengths * slopes + slack)
        if not bool(short.any()):
            break
        lengths = torch.where(short, lengths / 2, lengths)
    return lengths
