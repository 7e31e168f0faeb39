"""Losses told from losses under other circumstances, against samples with a known joint distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from worker.editing.unseen import level_elsewhere, transported

pytestmark = pytest.mark.usefixtures("double")


def joint(n: int, correlation: float, seed: int) -> tuple[Tensor, Tensor]:
    """Log-normal losses of the same rows under two circumstances; the second are four times as large."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(n, generator=generator)
    other = correlation * score + math.sqrt(1 - correlation**2) * torch.randn(n, generator=generator)
    return (0.5 * score).exp(), 4 * (0.8 * other).exp()


def test_expectation_is_that_of_the_gaussian_copula() -> None:
    """In closed form ``E[4 exp(0.8 (ρ z + √(1−ρ²) ε))] = 4 exp(0.8 ρ z + 0.32 (1−ρ²))``; its quantiles are known to
    within some per cent from 4,000 rows, and the score to within 0.02."""
    here, there = joint(4000, 0.0, seed=1)
    z = torch.tensor([-1.5, 0.0, 1.0])
    expected = 4 * torch.exp(0.8 * 0.7 * z + 0.32 * (1 - 0.7**2))
    found, variance = transported((0.5 * z).exp(), here, there, correlation=0.7)
    torch.testing.assert_close(found, expected, rtol=0.06, atol=0)
    torch.testing.assert_close(variance, expected**2 * (math.exp(0.64 * (1 - 0.7**2)) - 1), rtol=0.25, atol=0)


def test_without_correlation_everyone_is_the_mean() -> None:
    here, there = joint(500, 0.0, seed=2)
    found, _ = transported(here[:4], here, there, correlation=0.0)
    assert float(found.max() - found.min()) < 1e-12
    # 64 quantiles of 500 rows miss some of the largest losses.
    assert float(found[0]) == pytest.approx(float(there.mean()), rel=0.03)


def test_full_correlation_maps_ranks_onto_ranks() -> None:
    here, there = torch.arange(9.0), torch.arange(9.0) * 10
    found, variance = transported(torch.tensor([4.0]), here, there, correlation=1.0)
    # Below 4 lie 4 of 9, so its rank is (4 + ½)/10 = 0.45, and the 0.45-quantile of the other nine is at 0.45·9 − ½.
    assert float(found) == pytest.approx(10 * (0.45 * 9 - 0.5))
    assert float(variance) == 0.0


def test_hard_rows_have_a_higher_level_and_few_rows_a_wider_one() -> None:
    seen, unseen = joint(400, 0.8, seed=3)
    order = seen.argsort()
    easy, hard = (level_elsewhere(seen[part], seen, unseen) for part in (order[:40], order[-40:]))
    few = level_elsewhere(seen[order[-5:]], seen, unseen)
    assert easy.value < float(unseen.mean()) < hard.value
    assert hard.low < hard.value < hard.high
    assert (few.high - few.low) > 1.5 * (hard.high - hard.low)


@pytest.mark.parametrize("size", [20, 60])
def test_levels_are_nearer_the_truth_than_the_plain_mean(size: int) -> None:
    """Over 200 groups, with the correlation that is assumed: root mean squared error at most 0.8 of the plain one's
    (√(1 − 0.8²) = 0.6 for normal losses; these have heavy tails)."""
    seen, truth = joint(2000, 0.8, seed=4)
    reference, held_out = joint(2000, 0.8, seed=5)[0], joint(2000, 0.8, seed=6)[1]
    generator = torch.Generator().manual_seed(7)
    errors: dict[str, list[float]] = {"told": [], "plain": []}
    for _ in range(200):
        group = torch.randperm(2000, generator=generator)[:size]
        errors["told"].append(level_elsewhere(seen[group], reference, held_out).value - float(truth[group].mean()))
        errors["plain"].append(float(held_out.mean()) - float(truth[group].mean()))
    told, plain = (torch.tensor(errors[name]).square().mean().sqrt() for name in ("told", "plain"))
    assert told < 0.8 * plain


def test_one_row_on_every_side_is_enough() -> None:
    one = torch.tensor([0.3])
    level = level_elsewhere(one, one, torch.tensor([2.0]))
    assert (level.low, level.value, level.high) == (0.0, 2.0, 4.0)
