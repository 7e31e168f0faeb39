"""Preconditioned conjugate gradients on parameter vectors (Hestenes and Stiefel 1952)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from worker.curvature.errors import NonFiniteError
from worker.curvature.vectors import ParameterMapping, ParameterVector, ravel, unravel, zeros_like

Operator = Callable[[ParameterVector], ParameterMapping]


class Stop(StrEnum):
    """Why the iteration ended."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "max_iterations"
    ZERO_RIGHT_HAND_SIDE = "zero_right_hand_side"
    NEGATIVE_CURVATURE = "negative_curvature"
    """``pᵀ(F + dI)p ≤ 0``: the product is not positive definite to working precision. The solution is the
    last good iterate."""
    INDEFINITE_PRECONDITIONER = "indefinite_preconditioner"
    """``rᵀM⁻¹r ≤ 0``, likewise."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of :func:`conjugate_gradients`.

    Attributes:
        vector: the approximate ``Δ`` with ``(F + dI) Δ = u``.
        iterations: completed, one product each.
        stop: why it ended.
        residual_norms: ``‖u − (F + dI)Δ‖`` by the recurrence, before the first iteration and after each.
        quadratic: ``½ Δᵀ(F + dI)Δ − uᵀΔ`` after each iteration; it falls as long as the product is
            consistent.
        iterates: the vector after each iteration if asked for, else empty.
    """

    vector: ParameterVector
    iterations: int
    stop: Stop
    residual_norms: tuple[float, ...]
    quadratic: tuple[float, ...]
    iterates: tuple[ParameterVector, ...] = ()

    @property
    def relative_residual(self) -> float:
        """Last residual norm over that of the right-hand side; 0 for a zero right-hand side."""
        return self.residual_norms[-1] / self.residual_norms[0] if self.residual_norms[0] else 0.0


def conjugate_gradients(
    matmul: Operator,
    rhs: ParameterMapping,
    *,
    damping: float,
    precondition: Operator | None = None,
    max_iterations: int = 8,
    tolerance: float = 1e-6,
    keep_iterates: bool = False,
) -> Solution:
    """Solve ``(F + dI) Δ = u``.

    Args:
        matmul: ``v ↦ F v``, symmetric positive semi-definite, without the damping.
        rhs: ``u``. The solution has its names, shapes, type and device.
        damping: ``d ≥ 0``.
        precondition: ``v ↦ M⁻¹ v``, symmetric positive definite; the identity if None. To keep a step inside
            a subspace give a right-hand side, a product and a preconditioner that stay inside it.
        max_iterations: products at most.
        tolerance: stop once ``‖r‖ ≤ tolerance · ‖u‖``.
        keep_iterates: also return the vector after each iteration.

    Raises:
        NonFiniteError: the right-hand side, a product or a preconditioned residual is not finite.
        ValueError: negative damping.
    """
    if not damping >= 0:
        raise ValueError(f"damping must not be negative: {damping}")

    def flat(result: ParameterMapping) -> Tensor:
        return ravel({name: result[name] for name in rhs})

    def preconditioned(residual: Tensor) -> Tensor:
        return residual if precondition is None else flat(precondition(unravel(residual, rhs)))

    r = ravel(rhs).clone()
    norms = [_number(r.norm(), "the right-hand side")]
    if norms[0] == 0:
        return Solution(zeros_like(rhs), 0, Stop.ZERO_RIGHT_HAND_SIDE, (0.0,), ())
    u, x = r.clone(), torch.zeros_like(r)
    z = preconditioned(r)
    p, rz = z.clone(), _number(r.dot(z), "the preconditioned residual")
    quadratic: list[float] = []
    iterates: list[ParameterVector] = []
    stop = Stop.MAX_ITERATIONS
    while len(quadratic) < max_iterations:
        if rz <= 0:
            stop = Stop.INDEFINITE_PRECONDITIONER
            break
        product = flat(matmul(unravel(p, rhs))).add(p, alpha=damping)
        curvature = _number(p.dot(product), f"the curvature product of iteration {len(quadratic) + 1}")
        if curvature <= 0:
            stop = Stop.NEGATIVE_CURVATURE
            break
        x.add_(p, alpha=rz / curvature)
        r.sub_(product, alpha=rz / curvature)
        quadratic.append(-0.5 * _number((r + u).dot(x), "the solution"))
        norms.append(_number(r.norm(), "the residual"))
        if keep_iterates:
            iterates.append(unravel(x.clone(), rhs))
        if norms[-1] <= tolerance * norms[0]:
            stop = Stop.CONVERGED
            break
        if len(quadratic) < max_iterations:
            z = preconditioned(r)
            rz, previous = _number(r.dot(z), "the preconditioned residual"), rz
            p.mul_(rz / previous).add_(z)
    return Solution(unravel(x, rhs), len(quadratic), stop, tuple(norms), tuple(quadratic), tuple(iterates))


def _number(value: Tensor, what: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise NonFiniteError(f"{what} is not finite")
    return number
