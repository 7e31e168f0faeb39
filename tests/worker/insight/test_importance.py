"""Estimated and real drops of concepts against dense references, and how agreement between them is told."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import cross_entropy

from worker.cbm.label_predictor import LabelObjective, LabelPredictor, fit_label_predictor
from worker.insight.importance import (
    DropEffects,
    LabelledConcepts,
    agreement,
    drop_effects,
    mean_losses,
    newton_step,
)

CLASSES, CONCEPTS, WEIGHT_DECAY = 3, 5, 1e-2


def data(n: int, seed: int) -> LabelledConcepts:
    """Classes that need concepts 0 and 1, use 2, and never saw 3 and 4."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(n, CONCEPTS, generator=generator)
    scores = torch.stack([4 * probabilities[:, 0], 4 * probabilities[:, 1], 2 + probabilities[:, 2]], dim=1)
    noise = 0.3 * torch.randn(n, CLASSES, generator=generator)
    return LabelledConcepts(probabilities, (scores + noise).argmax(dim=1))


@pytest.fixture(scope="module")
def effects() -> tuple[LabelPredictor, LabelledConcepts, LabelledConcepts, DropEffects]:
    torch.set_default_dtype(torch.float64)
    train, held_out = data(300, 0), data(200, 1)
    predictor = fit_label_predictor(train.probabilities, train.classes, CLASSES, weight_decay=WEIGHT_DECAY)
    return predictor, train, held_out, drop_effects(predictor, train, held_out, weight_decay=WEIGHT_DECAY)


def test_real_drops_are_fits_from_nothing_without_the_concept(
    effects: tuple[LabelPredictor, LabelledConcepts, LabelledConcepts, DropEffects],
) -> None:
    predictor, train, held_out, found = effects
    assert found.refitted.shape == found.estimated.shape == (CONCEPTS, 1 + CLASSES)
    before = cross_entropy(predictor.logits(held_out.probabilities), held_out.classes)
    for j in range(CONCEPTS):
        kept = [column for column in range(CONCEPTS) if column != j]
        fresh = fit_label_predictor(train.probabilities[:, kept], train.classes, CLASSES, weight_decay=WEIGHT_DECAY)
        logits = fresh.logits(held_out.probabilities[:, kept])
        # The refit stops at a gradient of 1e-6: 1e-4 in the parameters at most, far less in a mean loss.
        assert float(found.refitted[j, 0]) == pytest.approx(
            float(cross_entropy(logits, held_out.classes) - before), abs=1e-5
        )
        for number in range(CLASSES):
            mine = held_out.classes == number
            own = cross_entropy(logits[mine], held_out.classes[mine])
            own -= cross_entropy(predictor.logits(held_out.probabilities)[mine], held_out.classes[mine])
            assert float(found.refitted[j, 1 + number]) == pytest.approx(float(own), abs=1e-5)
    assert sorted(found.refitted[:, 0].argsort(descending=True)[:2].tolist()) == [0, 1], "these decide the class"


def test_an_estimate_is_one_newton_step_with_the_dense_hessian(
    effects: tuple[LabelPredictor, LabelledConcepts, LabelledConcepts, DropEffects],
) -> None:
    predictor, train, held_out, found = effects
    j, kept = 1, [0, 2, 3, 4]
    inputs = torch.cat([train.probabilities[:, kept], torch.ones(len(train.classes), 1)], dim=1)

    def value(flat: Tensor) -> Tensor:
        theta = flat.view(CLASSES, CONCEPTS)
        return cross_entropy(inputs @ theta.T, train.classes) + 0.5 * WEIGHT_DECAY * theta.square().sum()

    theta = torch.cat([predictor.weight[:, kept], predictor.bias[:, None]], dim=1).flatten()
    gradient = torch.func.grad(value)(theta)
    hessian: Tensor = torch.func.jacrev(torch.func.grad(value))(theta)
    expected = (theta - torch.linalg.solve(hessian, gradient)).view(CLASSES, CONCEPTS)
    objective = LabelObjective(train.probabilities[:, kept], train.classes, CLASSES, WEIGHT_DECAY)
    step = newton_step(predictor.without_concepts([j]), objective)
    torch.testing.assert_close(step.weight, expected[:, :-1], rtol=1e-4, atol=1e-5)
    loss = cross_entropy(held_out.probabilities[:, kept] @ expected[:, :-1].T + expected[:, -1], held_out.classes)
    before = cross_entropy(predictor.logits(held_out.probabilities), held_out.classes)
    assert float(found.estimated[j, 0]) == pytest.approx(float(loss - before), abs=1e-5)


def test_estimates_are_exact_where_the_step_is_small() -> None:
    """A concept that hardly counts: one Newton step reaches the refit."""
    train, held_out = data(300, 0), data(200, 1)
    train.probabilities[:, 4] *= 0.05
    held_out.probabilities[:, 4] *= 0.05
    predictor = fit_label_predictor(train.probabilities, train.classes, CLASSES, weight_decay=WEIGHT_DECAY)
    found = drop_effects(predictor, train, held_out, weight_decay=WEIGHT_DECAY)
    change = abs(float(found.refitted[4, 0]))
    assert float(found.estimated[4, 0]) == pytest.approx(float(found.refitted[4, 0]), abs=0.05 * change + 1e-7)


def test_progress_is_told_in_concepts() -> None:
    train, held_out = data(50, 0), data(50, 1)
    predictor = fit_label_predictor(train.probabilities, train.classes, CLASSES, weight_decay=WEIGHT_DECAY)
    told: list[tuple[int, int]] = []
    drop_effects(
        predictor,
        train,
        held_out,
        weight_decay=WEIGHT_DECAY,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(done, CONCEPTS) for done in range(1, CONCEPTS + 1)]


def test_a_class_without_rows_has_no_loss() -> None:
    rows = LabelledConcepts(torch.rand(4, 2), torch.tensor([0, 0, 2, 2]))
    losses = mean_losses(LabelPredictor(torch.rand(3, 2), torch.zeros(3)), rows, 3)
    assert [math.isnan(loss) for loss in losses.tolist()] == [False, False, True, False]
    assert float(losses[0]) == pytest.approx(float((losses[1] + losses[3]) / 2))


def test_overlaps_are_of_the_greatest_and_of_the_least() -> None:
    truth = torch.arange(30.0)
    estimate = truth.clone()
    estimate[[0, 29]] = estimate[[29, 0]]  # the greatest and the least exchanged
    estimate[[14, 15]] = estimate[[15, 14]]  # in the middle, where no group reaches
    found = agreement(estimate, truth)
    assert (found.size, found.top, found.bottom) == (10, 9, 9)
    assert found.rank_correlation == pytest.approx(float(spearmanr(estimate, truth).statistic))
    same, opposite = agreement(truth, truth), agreement(-truth, truth)
    assert (same.size, same.top, same.bottom) == (10, 10, 10)
    assert (opposite.size, opposite.top, opposite.bottom) == (10, 0, 0)
    assert (same.rank_correlation, opposite.rank_correlation) == (1.0, -1.0), "sums of halves are exact"


def test_of_few_concepts_the_halves_are_compared() -> None:
    """Of nine concepts any ten greatest are all of them: that would always agree."""
    found = agreement(torch.arange(9.0), -torch.arange(9.0))
    assert (found.size, found.top, found.bottom) == (4, 0, 0)
    assert agreement(torch.ones(9), torch.arange(9.0)).rank_correlation is None
    tied = torch.tensor([1.0, 1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 2.0, 0.0])
    assert agreement(*tied).rank_correlation == pytest.approx(float(spearmanr(*tied).statistic))
