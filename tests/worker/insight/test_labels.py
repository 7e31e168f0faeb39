"""Influences of labels against explicit gradients and a dense inverse, and against real retrainings."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.worker.curvature.dense import bernoulli, flat_jacobian, flatten, gauss_newton
from tests.worker.editing.rows import CONCEPTS, linear_net, objective_gradient, random_rows, tiny_net
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses
from worker.curvature import vectors
from worker.curvature.factors import fit_factors
from worker.data.tensors import LabelledImages
from worker.editing.step import Curvature
from worker.insight.labels import UNKNOWN, flip_effects, label_influences, mean_loss_gradient, slopes

DAMPING = 0.05


def known(rows: LabelledImages) -> Tensor:
    return (rows.concepts != UNKNOWN).double()


def dense_inverse(model: ConceptPredictor, rows: LabelledImages, damping: float) -> Tensor:
    F = gauss_newton(flat_jacobian(model, rows.images), bernoulli(model, rows.images, known(rows)))
    inverse: Tensor = torch.linalg.inv(F + damping * torch.eye(len(F)))
    return inverse


def solved(
    model: ConceptPredictor, rows: LabelledImages, target: LabelledImages, damping: float
) -> vectors.ParameterVector:
    factors = fit_factors(model, lambda: [(rows.images, known(rows), torch.arange(len(rows)))], seed=1)
    curvature = Curvature(model, rows, torch.ones(len(rows)), factors, damping)
    return curvature.solve(mean_loss_gradient(model, target), iterations=400).vector


def explicit_gradients(model: ConceptPredictor, rows: LabelledImages) -> Tensor:
    """``∇ℓ_ij`` of every label by a backward pass of its own, ``[n, k, P]``; 0 where it is unknown."""
    parameters = list(model.parameters())
    gradients = torch.zeros(len(rows), CONCEPTS, sum(parameter.numel() for parameter in parameters))
    for i in range(len(rows)):
        for j in range(CONCEPTS):
            alone = torch.full_like(rows.concepts[i : i + 1], UNKNOWN)
            alone[0, j] = rows.concepts[i, j]
            loss = concept_losses(model(rows.images[i : i + 1]), alone).sum()
            gradients[i, j] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    return gradients


def test_influences_are_those_of_explicit_gradients_and_a_dense_inverse() -> None:
    model, rows, target = tiny_net(), random_rows(70), random_rows(20, seed=1, first_id=100)
    direction = solved(model, rows, target, DAMPING)
    logits, along = slopes(model, rows.images, direction)
    torch.testing.assert_close(logits, model(rows.images).detach())
    influences = label_influences(logits, along, rows.concepts)
    gradients = explicit_gradients(model, rows)
    target_gradient = torch.autograd.grad(
        concept_losses(model(target.images), target.concepts).mean(), list(model.parameters())
    )
    v = torch.cat([g.flatten() for g in target_gradient])
    expected = -(gradients @ dense_inverse(model, rows, DAMPING) @ v) / len(rows)
    # The solve stops at a residual of 1e-3 of the gradient.
    assert float((influences - expected).norm()) <= 2e-3 * float(expected.norm())
    assert bool((influences[rows.concepts == UNKNOWN] == 0).all())
    assert int((influences != 0).sum()) == int(known(rows).sum())


def test_slopes_are_products_with_the_jacobian_in_batches_and_leave_the_model_alone() -> None:
    model, rows = tiny_net(), random_rows(70)  # more than a batch
    before = copy.deepcopy(model.state_dict())
    direction = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    told: list[tuple[int, int]] = []
    _, along = slopes(model, rows.images, direction, lambda done, total: told.append((done, total)))
    torch.testing.assert_close(along, flat_jacobian(model, rows.images) @ flatten(direction))
    assert told == [(64, 70), (70, 70)]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


WEIGHT_DECAY = 0.1


def minimised(rows: LabelledImages) -> ConceptPredictor:
    """The minimiser of the convex objective: by concept, Newton's method with a dense Hessian."""
    model = linear_net()
    inputs = torch.cat([rows.images.flatten(1), torch.ones(len(rows), 1)], dim=1)
    for j in range(CONCEPTS):
        known_here, targets = (rows.concepts[:, j] != UNKNOWN).double(), rows.concepts[:, j].clamp_min(0).double()
        theta = torch.zeros(inputs.shape[1])
        for _ in range(30):
            p = torch.sigmoid(inputs @ theta)
            gradient = inputs.T @ (known_here * (p - targets)) / len(rows) + WEIGHT_DECAY * theta
            hessian = (inputs.T * (known_here * p * (1 - p))) @ inputs / len(rows)
            step = torch.linalg.solve(hessian + WEIGHT_DECAY * torch.eye(len(theta)), gradient)
            theta = theta - step
            if float(step.norm()) < 1e-12:
                break
        with torch.no_grad():
            model.head.weight[j], model.head.bias[j] = theta[:-1], theta[-1]
    gradient_norm = flatten(objective_gradient(model, rows, WEIGHT_DECAY)).norm()
    assert float(gradient_norm) < 1e-10
    return model


@pytest.fixture(scope="module")
def retrained() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Influences and flip effects on the held-out loss, and what retrainings without or with the other label say."""
    torch.set_default_dtype(torch.float64)
    rows, held_out = random_rows(120), random_rows(60, seed=3, first_id=1000)
    model = minimised(rows)
    # For logistic regression F is the Hessian, and the weight decay its damping: the influence is a derivative.
    inverse = dense_inverse(model, rows, WEIGHT_DECAY)
    v = flatten(mean_loss_gradient(model, held_out))
    direction = vectors.unravel(inverse @ v, dict(model.named_parameters()))
    logits, along = slopes(model, rows.images, direction)
    influences = label_influences(logits, along, rows.concepts)
    flips = flip_effects(along, rows.concepts)

    def held_out_loss(concepts: Tensor) -> float:
        logits = minimised(replace(rows, concepts=concepts))(held_out.images).detach()
        return float(concept_losses(logits, held_out.concepts).mean())

    base = held_out_loss(rows.concepts)
    places = (rows.concepts != UNKNOWN).nonzero().tolist()[::6]
    without, turned = [], []
    for i, j in places:
        unknown, other = rows.concepts.clone(), rows.concepts.clone()
        unknown[i, j], other[i, j] = UNKNOWN, 1 - rows.concepts[i, j]
        without.append(base - held_out_loss(unknown))
        turned.append(held_out_loss(other) - base)
    chosen = tuple(torch.tensor(places).T)
    return influences[chosen], torch.tensor(without), flips[chosen], torch.tensor(turned)


def test_influences_foretell_what_retraining_without_the_label_does(
    retrained: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """To first order in 1/n: a label of 120 rows' is a small change, though not an infinitesimal one."""
    influences, real, _, _ = retrained
    assert len(real) > 50
    assert float(torch.corrcoef(torch.stack([influences, real]))[0, 1]) > 0.97
    assert float((influences - real).norm()) < 0.3 * float(real.norm())
    clear = real.abs() > real.abs().median()
    assert bool((influences.sign() == real.sign())[clear].all())


def test_flip_effects_foretell_what_retraining_with_the_other_label_does(
    retrained: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    _, _, flips, real = retrained
    assert float(torch.corrcoef(torch.stack([flips, real]))[0, 1]) > 0.97
    assert float((flips - real).norm()) < 0.3 * float(real.norm())
