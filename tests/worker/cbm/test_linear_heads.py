"""Heads on fixed features: the objective's derivatives, and where Newton's method ends."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.cbm.linear_heads import TOLERANCE, HeadObjective, fit_heads


def problem(n: int = 60, d: int = 5, k: int = 4, *, seed: int = 0, weight_decay: float = 1e-3) -> HeadObjective:
    """Random features and labels, a tenth of them unknown."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64)
    features = torch.cat([features, features.new_ones(n, 1)], dim=1)
    labels = torch.randint(0, 2, (n, k), generator=generator)
    labels[torch.rand(n, k, generator=generator) < 0.1] = -1
    return HeadObjective(features, labels, weight_decay)


def theta_of(objective: HeadObjective, seed: int = 1) -> Tensor:
    shape = (objective.labels.shape[1], objective.features.shape[1])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def training_objective(objective: HeadObjective, theta: Tensor) -> Tensor:
    """The objective as training states it, summed over concepts."""
    logits = objective.features @ theta.T
    labels = objective.labels
    losses = binary_cross_entropy_with_logits(logits, labels.clamp_min(0).to(logits), reduction="none")
    loss = (losses * (labels >= 0)).sum(dim=1).mean()
    return loss + 0.5 * objective.weight_decay * theta.square().sum()


def test_value_gradient_and_hessian_are_those_of_the_training_objective() -> None:
    objective = problem()
    theta = theta_of(objective)
    torch.testing.assert_close(objective.values(theta).sum(), training_objective(objective, theta))
    gradient = torch.func.grad(partial(training_objective, objective))
    torch.testing.assert_close(objective.gradients(theta), gradient(theta))
    hessian = torch.func.jacrev(gradient)(theta)
    vectors = theta_of(objective, seed=2)
    torch.testing.assert_close(
        objective.hessian_products(objective.weights(theta), vectors),
        torch.einsum("iajb,jb->ia", hessian, vectors),
    )
    factor = objective.preconditioner(objective.weights(theta))
    mean = torch.stack([hessian[j, :, j] for j in range(len(theta))]).mean(dim=0)
    torch.testing.assert_close(factor @ factor.T, mean)


@pytest.mark.parametrize("start", [0.0, 1.0, 30.0])
def test_the_minimiser_does_not_depend_on_the_start(start: float) -> None:
    """Thirty is far out, where full Newton steps overshoot."""
    objective = problem()
    zero = torch.zeros_like(theta_of(objective))
    expected = fit_heads(objective, zero)
    found = fit_heads(objective, start * theta_of(objective))
    assert float(objective.gradients(found.theta).norm(dim=1).max()) <= TOLERANCE
    # Each is within TOLERANCE / weight decay of the minimiser.
    assert float((found.theta - expected.theta).norm(dim=1).max()) <= 2 * TOLERANCE / 1e-3


def test_separable_labels_have_a_minimiser_too() -> None:
    objective = problem(weight_decay=1e-4)
    labels = (objective.features[:, :1] > 0).long().expand(-1, 2).contiguous()
    labels[:, 1] = 1
    objective = HeadObjective(objective.features, labels, 1e-4)
    found = fit_heads(objective, torch.zeros(2, 6, dtype=torch.float64))
    assert float(objective.gradients(found.theta).norm(dim=1).max()) <= TOLERANCE


def test_a_concept_of_which_nothing_is_known_is_zero() -> None:
    objective = problem()
    objective.labels[:, 2] = -1
    found = fit_heads(objective, theta_of(objective))
    torch.testing.assert_close(found.theta[2], torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-6)


def test_without_weight_decay_there_may_be_no_minimiser() -> None:
    with pytest.raises(ValueError, match="positive weight decay"):
        problem(weight_decay=0.0)


def test_one_concept_alone_needs_one_product_a_step() -> None:
    """Its Hessian is the preconditioner."""
    objective = problem(k=1)
    fit = fit_heads(objective, torch.zeros(1, 6, dtype=torch.float64))
    assert fit.products == fit.steps > 1


def test_too_few_steps_are_told() -> None:
    objective = problem()
    with pytest.raises(RuntimeError, match="no convergence in 1 Newton steps"):
        fit_heads(objective, 10 * theta_of(objective), max_steps=1)
