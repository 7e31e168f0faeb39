"""The bound of one Newton step is never below what the step leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.worker.cbm.test_linear_heads import problem, theta_of
from worker.cbm.linear_heads import HeadObjective, fit_heads
from worker.editing.certificate import SHARP_GAMMA, spectral_norm, step_bound


def without(objective: HeadObjective, rows: int) -> HeadObjective:
    """The objective when the first rows leave."""
    return HeadObjective(objective.features[rows:], objective.labels[rows:], objective.weight_decay)


def newton_step(objective: HeadObjective, start: Tensor) -> Tensor:
    """By dense Hessians."""
    weights, gradients = objective.weights(start), objective.gradients(start)
    ridge = objective.weight_decay * torch.eye(start.shape[1], dtype=start.dtype)
    steps = [
        torch.linalg.solve(objective.features.T @ (weights[:, j, None] * objective.features) + ridge, gradients[j])
        for j in range(len(start))
    ]
    return start - torch.stack(steps)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("rows", "weight_decay"), [(1, 1e-1), (1, 1e-3), (6, 1e-2), (20, 1e-3), (20, 1e-5)])
def test_bounds_hold_for_removals(seed: int, rows: int, weight_decay: float) -> None:
    before = problem(n=80, d=6, k=5, seed=seed, weight_decay=weight_decay)
    after = without(before, rows)
    start = fit_heads(before, torch.zeros(5, 7, dtype=torch.float64)).theta
    step = newton_step(after, start)
    bound = step_bound(after, start, step)
    torch.testing.assert_close(bound.residual, after.gradients(step).norm(dim=1))
    assert bool((bound.residual > 0).all())
    assert bool((bound.residual <= bound.sharp).all())
    assert bool((bound.sharp <= bound.guo).all())


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.5, 1.0, 20.0])
def test_bounds_hold_for_any_step(scale: float) -> None:
    """A step that solves nothing leaves its solver's residual, which is in the bound."""
    objective = problem(seed=3)
    start = theta_of(objective)
    bound = step_bound(objective, start, start + scale * theta_of(objective, seed=5))
    assert bool((bound.residual <= bound.sharp).all())
    assert bool((bound.residual <= bound.guo).all())


def test_the_first_step_of_a_fit_is_newtons() -> None:
    before = problem(seed=1, weight_decay=1e-2)
    after = without(before, 2)
    start = fit_heads(before, torch.zeros(4, 6, dtype=torch.float64)).theta
    fit = fit_heads(after, start)
    newton = newton_step(after, start)
    # The solve behind it stops at a hundredth of the gradient at the latest.
    assert float((fit.first_step - newton).norm()) <= 0.02 * float((newton - start).norm())
    anew = fit_heads(after, torch.zeros_like(start)).theta
    torch.testing.assert_close(fit.theta, anew, rtol=0, atol=1e-6)
    bound = step_bound(after, start, fit.first_step)
    # One row in thirty leaves: what the step leaves is a small part of the gradient it started with.
    assert bool((bound.residual < 0.05 * after.gradients(start).norm(dim=1)).all())


def test_the_sharp_constant_is_the_logistic_losss() -> None:
    z = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    p = torch.sigmoid(z)
    slope = (p * (1 - p) * (1 - 2 * p)).abs()
    assert float(slope.max()) <= SHARP_GAMMA
    assert float(slope.max()) == pytest.approx(SHARP_GAMMA, rel=1e-6)


@pytest.mark.parametrize("shape", [(30, 5), (4, 9), (0, 3)])
def test_spectral_norm(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float(torch.linalg.matrix_norm(matrix, 2)) if shape[0] else 0.0
    assert spectral_norm(matrix) == pytest.approx(expected, rel=1e-12)
