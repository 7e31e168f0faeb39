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

_CHORD = 0.1
"""A factorised Hessian is used again while each step leaves at most this part of the gradient: forming it costs
``n (d+1)²``, a step with it only ``n (d+1)``."""

_BLOCK_BYTES = 256 << 20


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

    def hessian_products(self, theta: Tensor, vectors: Tensor) -> Tensor:
        """``H_j(θ_j) v_j`` ``[k, d + 1]``."""
        p = torch.sigmoid(self.features @ theta.T)
        curved = p * (1 - p) * self.known * (self.features @ vectors.T)
        return curved.T @ self.features / len(self.features) + self.weight_decay * vectors

    def cholesky(self, theta: Tensor) -> Tensor:
        """Lower Cholesky factors of ``H_j(θ_j)``, ``[k, d + 1, d + 1]``."""
        p = torch.sigmoid(self.features @ theta.T)
        roots = (p * (1 - p) * self.known / len(self.features)).sqrt()
        size = self.features.shape[1]
        hessians = self.features.new_empty(len(theta), size, size)
        for j in range(len(theta)):  # one after the other: the weighted features of all would not fit a memory
            weighted = self.features * roots[:, j, None]
            torch.mm(weighted.T, weighted, out=hessians[j])
        hessians.diagonal(dim1=1, dim2=2).add_(self.weight_decay)
        factors: Tensor = torch.linalg.cholesky(hessians)
        return factors


@dataclass(frozen=True)
class Fit:
    """Attributes:
    theta: ``[k, d + 1]``, the bias last.
    first_step: what the first Newton step led to, ``[k, d + 1]``; the start where it was converged already.
    factorisations: Hessians formed, over all concepts.
    steps: of the slowest concept.
    """

    theta: Tensor
    first_step: Tensor
    factorisations: int
    steps: int


def blocks(concepts: int, size: int) -> list[slice]:
    """Parts of the concepts whose Hessians fit memory together."""
    width = max(1, _BLOCK_BYTES // (8 * size * size))
    return [slice(start, min(start + width, concepts)) for start in range(0, concepts, width)]


def fit_heads(objective: HeadObjective, start: Tensor, *, tolerance: float = TOLERANCE, max_steps: int = 200) -> Fit:
    """The minimisers, by Newton's method with backtracking from ``start`` ``[k, d + 1]``.

    The first step is a full Newton step with the Hessian at the start wherever that lowers the objective.

    Raises:
        RuntimeError: a gradient norm is above ``tolerance`` after ``max_steps``.
    """
    theta, first = start.clone(), start.clone()
    factorisations, longest = 0, 0
    for part in blocks(len(start), start.shape[1]):
        concepts = torch.arange(part.start, part.stop, device=start.device)
        found = _fit_block(objective.of(concepts), start[part], tolerance, max_steps)
        theta[part], first[part] = found.theta, found.first_step
        factorisations += found.factorisations
        longest = max(longest, found.steps)
    return Fit(theta, first, factorisations, longest)


def _fit_block(objective: HeadObjective, start: Tensor, tolerance: float, max_steps: int) -> Fit:
    theta, first = start.clone(), start.clone()
    active = torch.arange(len(start), device=start.device)  # concepts that have not converged
    factors = theta.new_empty(0)
    stale, factorisations, previous = True, 0, theta.new_empty(0)
    for step in range(max_steps + 1):
        mine = objective.of(active)
        gradients = mine.gradients(theta[active])
        norms = gradients.norm(dim=1)
        if step and not stale:
            stale = bool((norms > tolerance).any()) and bool((norms > _CHORD * previous)[norms > tolerance].any())
        going = norms > tolerance
        if not bool(going.all()):
            active, gradients, norms = active[going], gradients[going], norms[going]
            factors = factors if stale else factors[going]
            mine = objective.of(active)
        if not len(active):
            return Fit(theta, first, factorisations, step)
        if stale:
            factors = mine.cholesky(theta[active])
            factorisations, stale = factorisations + len(active), False
        directions = -torch.cholesky_solve(gradients[:, :, None], factors)[:, :, 0]
        lengths = _lengths(mine, theta[active], directions, gradients)
        theta[active] += lengths[:, None] * directions
        if step == 0:
            first[active] = theta[active]
        stale = bool((lengths < 1).any())
        previous = norms
    raise RuntimeError(f"concept heads: no convergence in {max_steps} Newton steps")


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
