"""Labels drawn from the model: reproducible per row, and of the right distribution."""

import pytest
import torch

from worker.curvature.outputs import bernoulli_variance, masked_curvature, sampled_residual, uniforms

N = 20_000


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    draws = uniforms(torch.arange(N), 3, seed=1, draw=0)
    assert bool((draws >= 0).all() & (draws < 1).all())
    # Five standard errors of a mean of N uniforms (deviation 0.29), and of N products of centred ones (deviation 1/12).
    assert float((draws.mean(0) - 0.5).abs().max()) < 5 * 0.29 / N**0.5
    centred = draws - 0.5
    neighbours = torch.stack([(centred[1:] * centred[:-1]).mean(0), (centred * centred.roll(1, 1)).mean(0)])
    assert float(neighbours.abs().max()) < 5 / 12 / N**0.5


@pytest.mark.parametrize("changed", [{"seed": 2}, {"seed": -1}, {"seed": 2**70}, {"draw": 1}])
def test_uniforms_depend_on_seed_and_draw(changed: dict[str, int]) -> None:
    rows = torch.arange(N)
    first = uniforms(rows, 1, seed=1, draw=0)
    second = uniforms(rows, 1, **{"seed": 1, "draw": 0, **changed})
    covariance = ((first - 0.5) * (second - 0.5)).mean()
    assert float(covariance.abs()) < 5 / 12 / N**0.5


def test_a_row_is_drawn_the_same_in_any_company() -> None:
    rows = torch.tensor([5, 0, 10**12, 7])
    together = uniforms(rows, 4, seed=3, draw=2)
    for place, row in enumerate(rows):
        assert torch.equal(uniforms(row[None], 4, seed=3, draw=2)[0], together[place])
    assert torch.equal(uniforms(rows, 2, seed=3, draw=2), together[:, :2])


def test_residuals_have_mean_zero_and_the_bernoulli_variance() -> None:
    logits = torch.tensor([-2.0, 0.0, 1.0]).expand(N, 3)
    residual = sampled_residual(logits, None, torch.arange(N), seed=0, draw=0)
    # Residuals are bounded by 1, so five standard errors are at most 5/√N.
    assert float(residual.mean(0).abs().max()) < 5 / N**0.5
    torch.testing.assert_close(residual.square().mean(0), bernoulli_variance(logits[0]), atol=5 / N**0.5, rtol=0)


def test_unknown_labels_have_no_residual_and_no_curvature() -> None:
    logits, mask = torch.randn(6, 3), torch.rand(6, 3) > 0.5
    residual = sampled_residual(logits, mask, torch.arange(6), seed=0, draw=0)
    curvature = masked_curvature(logits, mask, bernoulli_variance)
    assert torch.equal(residual != 0, mask)
    assert torch.equal(curvature != 0, mask)
