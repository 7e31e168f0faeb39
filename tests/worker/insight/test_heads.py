"""Influences in heads on fixed features, against dense Hessians and against fits without or with the other label."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from worker.cbm.linear_heads import HeadObjective, fit_heads
from worker.insight.heads import head_leverages, head_slopes, target_gradients
from worker.insight.labels import UNKNOWN, flip_effects, label_influences

WEIGHT_DECAY = 0.02


def objective_of(n: int, seed: int, k: int = 3) -> HeadObjective:
    """Labels that a noisy linear rule gives to random features; a tenth of them unknown."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.cat([torch.randn(n, 4, generator=generator), torch.ones(n, 1)], dim=1)
    rule = torch.randn(5, k, generator=torch.Generator().manual_seed(100))
    labels = (features @ rule + 2 * torch.randn(n, k, generator=generator) > 0).long()
    labels[torch.rand(n, k, generator=generator) < 0.1] = UNKNOWN
    return HeadObjective(features, labels, WEIGHT_DECAY)


def minimised(objective: HeadObjective) -> Tensor:
    return fit_heads(objective, torch.zeros(objective.labels.shape[1], objective.features.shape[1])).theta


def mean_loss(target: HeadObjective, theta: Tensor) -> Tensor:
    return (target.values(theta) - 0.5 * WEIGHT_DECAY * theta.square().sum(dim=1)).sum()


def test_slopes_and_leverages_are_those_of_the_dense_hessians() -> None:
    objective, target = objective_of(40, 1), objective_of(20, 2)
    theta = minimised(objective) + 0.1
    gradients = target_gradients(target, theta)
    reported: list[tuple[int, int]] = []
    found = head_slopes(objective, theta, gradients, lambda done, total: reported.append((done, total)))
    leverages = head_leverages(objective, theta)
    variable = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(mean_loss(target, variable), variable)
    torch.testing.assert_close(gradients, expected)
    for j in range(3):
        one = objective.of(torch.tensor([j]))
        H = hessian(lambda row, one=one: one.values(row[None])[0], theta[j])  # type: ignore[no-untyped-call]
        inverse = torch.linalg.inv(H)
        torch.testing.assert_close(found.slopes[:, j], objective.features @ inverse @ gradients[j])
        torch.testing.assert_close(leverages[:, j], (objective.features @ inverse * objective.features).sum(dim=1))
    torch.testing.assert_close(found.logits, objective.features @ theta.T)
    assert found.relative_residual < 1e-10
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_a_target_that_asks_for_nothing_moves_nothing() -> None:
    objective = objective_of(20, 1)
    found = head_slopes(objective, minimised(objective), torch.zeros(3, 5))
    assert not found.slopes.any()
    assert found.relative_residual == 0


@pytest.mark.parametrize("kind", ["influence", "flip"])
def test_they_foretell_what_a_fit_on_other_labels_says(kind: str) -> None:
    """First order in 1/n: over 200 rows the thirty greatest are within a quarter, all in the same order."""
    objective, target = objective_of(200, 1), objective_of(100, 2)
    theta = minimised(objective)
    found = head_slopes(objective, theta, target_gradients(target, theta))
    labels = objective.labels
    foretold = (
        label_influences(found.logits, found.slopes, labels)
        if kind == "influence"
        else flip_effects(found.slopes, labels)
    )
    places = foretold.abs().flatten().topk(30).indices.tolist()
    before, real = mean_loss(target, theta), []
    for place in places:
        i, j = divmod(place, 3)
        others = labels.clone()
        others[i, j] = UNKNOWN if kind == "influence" else 1 - labels[i, j]
        after = mean_loss(target, fit_heads(replace(objective, labels=others), theta).theta)
        real.append(float(before - after if kind == "influence" else after - before))
    expected, first_order = torch.tensor(real), foretold.flatten()[places]
    torch.testing.assert_close(first_order, expected, rtol=0.25, atol=0)
    assert float(torch.corrcoef(torch.stack([first_order, expected]))[0, 1]) > 0.99
