"""Convolutions with groups: a block per group, exact where a group has one output."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

from tests.worker.curvature.blocks import assert_same_blocks, dense_block, kfac_block
from tests.worker.curvature.dense import (
    assemble,
    batches_of,
    bernoulli,
    gauss_newton,
    layer_jacobian,
    random_norms,
    random_vector,
)
from worker.curvature import contraction
from worker.curvature.ekfac import EKFAC
from worker.curvature.factors import assemble as assemble_factors
from worker.curvature.factors import fit_factors
from worker.curvature.layers import survey
from worker.curvature.moments import merge
from worker.curvature.outputs import sampled_residual
from worker.curvature.passes import Fit, eigenbases
from worker.curvature.storage import load_factors, save_factors

SEED = 7

GROUPED: dict[str, Callable[[], nn.Conv2d]] = {
    "two groups": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "no bias, stride": lambda: nn.Conv2d(4, 6, (2, 3), stride=(2, 1), groups=2, bias=False),
    "dilation, padding": lambda: nn.Conv2d(4, 4, 3, dilation=2, padding=(2, 1), groups=2),
    "circular": lambda: nn.Conv2d(4, 8, 3, padding="same", padding_mode="circular", groups=4),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "depthwise, stride, reflected": lambda: nn.Conv2d(
        4, 4, 3, stride=2, padding=1, padding_mode="reflect", groups=4, bias=False
    ),
}
DEPTHWISE = [name for name in GROUPED if name.startswith("depthwise")]

every_kind = pytest.mark.parametrize("make", GROUPED.values(), ids=GROUPED.keys())


def net(make: Callable[[], nn.Conv2d]) -> nn.Module:
    """Images ``[B, 1, 6, 6]`` to 3 logits, the convolution in question between others and an in-place ReLU."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), make(), nn.ReLU(inplace=True)]
    return random_norms(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3)))


def built(make: Callable[[], nn.Conv2d]) -> tuple[nn.Module, Tensor]:
    model, x = net(make), torch.randn(30, 1, 6, 6)
    model(x)
    return model, x


def group_gradients(gradients: Tensor, groups: int) -> Tensor:
    """``[..., G · d_out, d_in]`` as ``[..., G, d_out · d_in]``."""
    return gradients.reshape(*gradients.shape[:-2], groups, -1)


def sampled_gradients(model: nn.Module, x: Tensor, draws: int) -> Tensor:
    logits, J = model(x).detach(), layer_jacobian(model, x, "3")
    residuals = [sampled_residual(logits, None, torch.arange(len(x)), seed=SEED, draw=draw) for draw in range(draws)]
    return torch.cat([torch.einsum("nk,nkoi->noi", residual, J) for residual in residuals])


@every_kind
def test_patches_times_the_groups_matrices_are_the_convolution(make: Callable[[], nn.Conv2d]) -> None:
    model = nn.Sequential(make())
    x = torch.randn(3, 4, 7, 8)
    (layer,) = survey(model).grouped
    joint = layer.parameters.join(dict(model.named_parameters())).view(layer.groups, *layer.shape)
    expected = torch.einsum("btgi,goi->btgo", layer.patches(x), joint)
    torch.testing.assert_close(layer.gradient_rows(model(x)), expected)


@every_kind
@pytest.mark.parametrize("draws", [1, 2])
def test_corrected_eigenvalues_are_the_fishers_diagonal_in_the_groups_bases(
    make: Callable[[], nn.Conv2d], draws: int
) -> None:
    model, x = built(make)
    factor = fit_factors(model, batches_of(x, size=8), seed=SEED, num_draws=draws).grouped["3"]
    gradients = sampled_gradients(model, x, draws).view(-1, *factor.corrected.shape)
    projected = torch.einsum("gos,ngoi,gia->ngsa", factor.S.vectors, gradients, factor.A.vectors)
    torch.testing.assert_close(factor.corrected, projected.square().mean(0))


@every_kind
def test_groups_are_no_farther_from_the_fisher_than_without_the_correction(make: Callable[[], nn.Conv2d]) -> None:
    model, x = built(make)
    factor = fit_factors(model, batches_of(x), seed=SEED).grouped["3"]
    gradients = group_gradients(sampled_gradients(model, x, 1), len(factor.corrected))
    fisher = torch.einsum("ngp,ngq->gpq", gradients, gradients) / len(gradients)
    kfac = kfac_block(factor)
    # Equal where the block is exact already, up to the rounding of the products on either side.
    assert float((dense_block(factor) - fisher).norm()) <= float((kfac - fisher).norm()) + 1e-12


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_blocks_are_the_gauss_newton_blocks_of_their_channels(name: str) -> None:
    model, x = built(GROUPED[name])
    mask = torch.rand(30, 3) > 0.3
    factor = fit_factors(model, batches_of(x, mask, size=7), seed=SEED, output_fisher="exact").grouped["3"]
    J, weights = layer_jacobian(model, x, "3"), bernoulli(model, x, mask)
    for channel, block in enumerate(dense_block(factor)):
        torch.testing.assert_close(block, gauss_newton(J[:, :, channel], weights))


@every_kind
def test_traces_of_groups_are_those_of_the_gauss_newton(make: Callable[[], nn.Conv2d]) -> None:
    model, x = built(make)
    factors = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact")
    F = gauss_newton(layer_jacobian(model, x, "3"), bernoulli(model, x))
    per_group = F.diagonal().reshape(len(factors.grouped["3"].corrected), -1).sum(1)
    torch.testing.assert_close(factors.grouped["3"].corrected.sum((1, 2)), per_group)


@every_kind
def test_solve_is_the_dense_inverse_and_knows_nothing_between_groups(make: Callable[[], nn.Conv2d]) -> None:
    model, x = built(make)
    factors = fit_factors(model, batches_of(x), seed=SEED)
    factor = factors.grouped["3"]
    like = random_vector(model, factor.parameters.names)
    operator = EKFAC(factors, 0.05)
    matrix = assemble(operator.matmul, like)
    torch.testing.assert_close(assemble(operator.solve, like), torch.linalg.inv(matrix))
    # Order of the joint matrix: every row of [W | b] in turn.
    d_out, d_in = factor.parameters.shape
    places = torch.arange(d_out * d_in).view(d_out, d_in)
    if factor.parameters.bias is not None:
        weights = places[:, :-1].numel()
        kernel = torch.arange(weights).view(d_out, d_in - 1)
        places = torch.cat([kernel, torch.arange(weights, weights + d_out)[:, None]], dim=1)
    joint = matrix[places.flatten()][:, places.flatten()]
    expected = 0.05 * torch.eye(len(joint))
    for group, block in enumerate(dense_block(factor)):
        own = slice(group * len(block), (group + 1) * len(block))
        expected[own, own] += block
    torch.testing.assert_close(joint, expected)


@every_kind
def test_batches_partitions_and_chunks_do_not_matter(
    make: Callable[[], nn.Conv2d], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = built(make)
    rows = torch.arange(len(x))
    whole = fit_factors(model, batches_of(x), seed=SEED)
    fit = Fit(model, seed=SEED)
    parts = [batches_of(x[part], rows=rows[part], size=5) for part in (slice(0, 11), slice(11, 30))]
    bases = eigenbases(merge([fit.covariances(part) for part in parts]))
    assert_same_blocks(
        assemble_factors(fit, bases, merge([fit.corrected_eigenvalues(part, bases) for part in parts])), whole
    )
    monkeypatch.setattr(contraction, "CHUNK_ELEMENTS", 300)
    assert_same_blocks(fit_factors(model, batches_of(x), seed=SEED), whole)


def test_a_dead_group_has_no_curvature() -> None:
    model, x = built(GROUPED["depthwise"])
    with torch.no_grad():
        model.get_parameter("3.bias").fill_(100.0)[2] = -100.0  # behind that one the ReLU is closed
    factors = fit_factors(model, batches_of(x), seed=SEED)
    assert not factors.grouped["3"].corrected[2].any()
    assert bool(factors.grouped["3"].corrected[1].any())


def test_grouped_factors_are_stored_and_described(tmp_path: Path) -> None:
    model, x = built(GROUPED["two groups"])
    factors = fit_factors(model.float(), batches_of(x.float()), seed=SEED)
    save_factors(factors, tmp_path / "factors")
    loaded = load_factors(tmp_path / "factors")
    assert loaded.manifest() == factors.manifest()
    assert loaded.manifest()["grouped"]["3"]["weight_shape"] == [6, 2, 3, 3]
    vector = random_vector(model, factors.parameter_names)
    expected, found = EKFAC(factors, 0.1).solve(vector), EKFAC(loaded, 0.1).solve(vector)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_depthwise_architectures_are_covered() -> None:
    model = torchvision.models.mobilenet_v2(num_classes=5, width_mult=0.25).float().eval()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float32)
    factors = fit_factors(model, batches_of(x), seed=SEED)
    assert set(factors.parameter_names) == set(dict(model.named_parameters()))
    assert len(factors.grouped) == 17
    assert all(bool(torch.isfinite(factor.corrected).all()) for factor in factors.grouped.values())
