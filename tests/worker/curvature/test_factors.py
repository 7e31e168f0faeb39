"""Factors against their definitions, against dense curvature, and against themselves on other batches."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torchvision
from torch import Tensor, nn

from tests.worker.curvature.blocks import assert_same_blocks, dense_block, kfac_block
from tests.worker.curvature.dense import (
    batches_of,
    bernoulli,
    conv_net,
    flat_jacobian,
    gauss_newton,
    jacobian,
    layer_jacobian,
)
from worker.curvature import contraction
from worker.curvature.errors import NonFiniteError, TrainingModeError, UnsupportedLayerError
from worker.curvature.factors import Factors, assemble, fit_factors
from worker.curvature.moments import merge
from worker.curvature.outputs import sampled_residual
from worker.curvature.passes import Fit, eigenbases

SEED = 11


def identity_curvature(logits: Tensor) -> Tensor:
    """Squared error: the Hessian in the outputs is the identity."""
    return torch.ones_like(logits)


def sampled_gradients(model: nn.Module, x: Tensor, layer: str, draws: int) -> Tensor:
    """Per row and draw the gradient in ``[W | b]``, ``[n · draws, d_out, d_in]``, under the labels the fit draws."""
    logits, rows = model(x).detach(), torch.arange(len(x))
    residuals = [sampled_residual(logits, None, rows, seed=SEED, draw=draw) for draw in range(draws)]
    J = layer_jacobian(model, x, layer)
    return torch.cat([torch.einsum("nk,nkoi->noi", residual, J) for residual in residuals])


def assert_same(first: Factors, second: Factors) -> None:
    assert first.record == second.record
    assert_same_blocks(first, second)


def position_by_position(model: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """``A`` and ``S`` of a 3×2 convolution with stride (1, 2) and padding (0, 1) in front, by loops over positions."""
    convolution = model[0]
    assert isinstance(convolution, nn.Conv2d)
    padded = nn.functional.pad(x, (1, 1))
    output = convolution(x)
    output.retain_grad()
    weights = bernoulli(model, x)
    A, S = torch.zeros(13, 13), torch.zeros(2, 2)
    for j in range(weights.shape[1]):
        output = convolution(x).detach().requires_grad_()
        model[1:](output)[:, j].sum().backward()
        assert output.grad is not None
        positions = [(row, column) for row in range(output.shape[2]) for column in range(output.shape[3])]
        for i in range(len(x)):
            for row, column in positions:
                s = output.grad[i, :, row, column]
                S += weights[i, j] * torch.outer(s, s) / len(positions) / len(x)
                if j == 0:
                    patch = padded[i, :, row : row + 3, 2 * column : 2 * column + 2]
                    a = torch.cat([patch.reshape(-1), torch.ones(1)])
                    A += torch.outer(a, a) / len(x)
    return A, S


def test_second_moments_are_those_of_patches_and_preactivation_gradients() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 2, (3, 2), stride=(1, 2), padding=(0, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)
    )
    x = torch.randn(5, 2, 6, 4)
    A, S = position_by_position(model, x)
    factor = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact").layers["0"]
    torch.testing.assert_close(factor.A.vectors * factor.A.values @ factor.A.vectors.T, A)
    torch.testing.assert_close(factor.S.vectors * factor.S.values @ factor.S.vectors.T, S)


@pytest.mark.parametrize("layer", ["0", "3", "7"])
def test_corrected_eigenvalues_are_the_diagonal_of_the_fisher_in_the_eigenbasis(layer: str) -> None:
    model, x = conv_net(), torch.randn(40, 1, 6, 6)
    factor = fit_factors(model, batches_of(x), seed=SEED, num_draws=2).layers[layer]
    gradients = sampled_gradients(model, x, layer, draws=2)
    expected = torch.einsum("os,noi,ia->nsa", factor.S.vectors, gradients, factor.A.vectors).square().mean(0)
    torch.testing.assert_close(factor.corrected, expected)


def test_transposed_eigenvectors_would_give_other_eigenvalues() -> None:
    """The columns of Q are the eigenvectors and Q is not symmetric, so the test above can tell the two apart."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(40, 4)
    factor = fit_factors(model, batches_of(x), seed=SEED).layers["0"]
    Q_S, Q_A = factor.S.vectors, factor.A.vectors
    assert Q_S.shape == (3, 3)
    assert Q_A.shape == (5, 5)
    gradients = sampled_gradients(model, x, "0", draws=1)
    for wrong in ("so,noi,ia->nsa", "os,noi,ai->nsa", "so,noi,ai->nsa"):
        eigenvalues = torch.einsum(wrong, Q_S, gradients, Q_A).square().mean(0)
        assert (eigenvalues - factor.corrected).norm() > 0.05 * factor.corrected.norm()


@pytest.mark.parametrize("layer", ["0", "3", "7"])
@pytest.mark.parametrize("rows", [3, 60])
def test_ekfac_is_no_farther_from_the_fisher_of_the_same_draws_than_kfac(layer: str, rows: int) -> None:
    """George et al. 2018: Λ* is the best diagonal in the Kronecker eigenbasis, in Frobenius norm."""
    model, x = conv_net(), torch.randn(rows, 1, 6, 6)
    factor = fit_factors(model, batches_of(x), seed=SEED, num_draws=2).layers[layer]
    gradients = sampled_gradients(model, x, layer, draws=2).flatten(1)
    fisher = gradients.T @ gradients / len(gradients)
    ekfac_error = float((dense_block(factor) - fisher).norm())
    kfac_error = float((kfac_block(factor) - fisher).norm())
    assert ekfac_error <= kfac_error
    if rows == 60:
        assert ekfac_error < 0.999 * kfac_error


def test_ekfac_is_the_gauss_newton_block_of_deep_linear_nets_under_squared_error() -> None:
    """There the gradients at the pre-activations do not depend on the input, so every block is a Kronecker product."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 3))
    x = torch.randn(30, 5)
    factors = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact", output_curvature=identity_curvature)
    for name, factor in factors.layers.items():
        block = gauss_newton(layer_jacobian(model, x, name), torch.ones(30, 3))
        torch.testing.assert_close(dense_block(factor), block)


def test_ekfac_is_the_gauss_newton_block_of_linear_layers_on_one_datum() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(1, 5)
    factors = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact")
    for name, factor in factors.layers.items():
        block = gauss_newton(layer_jacobian(model, x, name), bernoulli(model, x))
        torch.testing.assert_close(dense_block(factor), block)


def test_trace_of_every_block_is_that_of_the_masked_gauss_newton() -> None:
    """A change of basis does not alter the trace, so it is exact for any net; a BatchNorm block is exact as a whole."""
    model, x = conv_net(), torch.randn(9, 1, 6, 6)
    mask = torch.rand(9, 3) > 0.4
    factors = fit_factors(model, batches_of(x, mask), seed=SEED, output_fisher="exact")
    weights = bernoulli(model, x, mask)
    for name, factor in factors.layers.items():
        block = gauss_newton(layer_jacobian(model, x, name), weights)
        torch.testing.assert_close(factor.corrected.sum(), block.trace())
    norm = factors.norms["1"].block
    expected = gauss_newton(flat_jacobian(model, x, ("1.weight", "1.bias")), weights)
    torch.testing.assert_close(norm.vectors * norm.values @ norm.vectors.T, expected)
    total = gauss_newton(flat_jacobian(model, x), weights)
    assert factors.mean_eigenvalue == pytest.approx(float(total.trace()) / len(total), rel=1e-9)


def test_one_dimensional_norms_have_exact_blocks_too() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).eval()
    x = torch.randn(8, 4)
    norm = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact").norms["1"].block
    expected = gauss_newton(flat_jacobian(model, x, ("1.weight", "1.bias")), bernoulli(model, x))
    torch.testing.assert_close(norm.vectors * norm.values @ norm.vectors.T, expected)


def test_sampled_fisher_approaches_the_exact_one() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3)
    exact = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact").layers["0"]
    sampled = fit_factors(model, batches_of(x), seed=SEED, num_draws=500).layers["0"]
    # 2000 draws of bounded variables: five standard errors are about 5/√2000 = 11% of the scale.
    assert float((dense_block(sampled) - dense_block(exact)).norm()) < 0.11 * float(dense_block(exact).norm())


@pytest.mark.parametrize("size", [1, 4, 7])
def test_batch_size_and_order_do_not_matter(size: int) -> None:
    model, x, mask = conv_net(), torch.randn(24, 1, 6, 6), torch.rand(24, 3) > 0.3
    whole = fit_factors(model, batches_of(x, mask), seed=SEED)
    order = torch.randperm(24)
    shuffled = batches_of(x[order], mask[order], size=size, rows=order)
    assert_same(fit_factors(model, shuffled, seed=SEED), whole)


@pytest.mark.parametrize("cut", [1, 9, 20])
def test_partial_fits_add_up_to_the_whole(cut: int) -> None:
    """Cuts on both sides of the width at which rows turn into sums."""
    model, x, rows = conv_net(), torch.randn(24, 1, 6, 6), torch.arange(24)
    fit = Fit(model, seed=SEED)
    first = batches_of(x[:cut], rows=rows[:cut], size=5)
    second = batches_of(x[cut:], rows=rows[cut:], size=5)
    bases = eigenbases(merge([fit.covariances(second), fit.covariances(first)]))
    merged = merge([fit.corrected_eigenvalues(part, bases) for part in (first, second)])
    assert_same(assemble(fit, bases, merged), fit_factors(model, batches_of(x), seed=SEED))


def test_moments_of_different_models_do_not_add() -> None:
    x = torch.randn(2, 3)
    first = Fit(nn.Sequential(nn.Linear(3, 2)), seed=0).covariances(batches_of(x))
    second = Fit(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), seed=0).covariances(batches_of(x))
    with pytest.raises(ValueError, match=r"A:0, A:1, S:0, S:1"):
        first + second
    with pytest.raises(ValueError, match="widths 4 and 2"):
        first.sums["A:0"] + first.sums["S:0"]


def test_seed_decides_the_sampled_labels_and_only_them() -> None:
    model, x = conv_net(), torch.randn(6, 1, 6, 6)
    first, second = (fit_factors(model, batches_of(x), seed=seed).layers["7"] for seed in (1, 2))
    torch.testing.assert_close(first.A.values, second.A.values)
    assert not torch.allclose(first.S.values, second.S.values)
    exact = [fit_factors(model, batches_of(x), seed=seed, output_fisher="exact").layers["7"] for seed in (1, 2)]
    assert torch.equal(exact[0].corrected, exact[1].corrected)


def test_in_place_activations_change_nothing() -> None:
    in_place = conv_net(inplace=True)
    plain = conv_net(inplace=False)
    plain.load_state_dict(in_place.state_dict())
    x = torch.randn(10, 1, 6, 6)
    assert_same(fit_factors(in_place, batches_of(x), seed=SEED), fit_factors(plain, batches_of(x), seed=SEED))


def test_every_contraction_order_and_any_chunking_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    a, s = torch.randn(5, 3, 6), [torch.randn(5, 3, 4), torch.randn(5, 3, 4)]
    Q_A, Q_S = torch.randn(6, 5), torch.randn(4, 2)
    expected = sum(torch.einsum("nto,nti,os,ia->nsa", draw, a, Q_S, Q_A).square().sum(0) for draw in s)
    for order in ("form", "project", "gram"):
        for limit in (1, 50, 2**24):
            monkeypatch.setattr(contraction, "CHUNK_ELEMENTS", limit)
            monkeypatch.setattr(contraction, "cheapest_order", lambda *args, answer=order, **kwargs: answer)
            torch.testing.assert_close(contraction.squared_projections(a, s, Q_A, Q_S), expected)


def test_contraction_order_follows_the_number_of_positions() -> None:
    """ResNet-18 at 64 px: the first block has 256 positions of 64 channels, the third 16 of 256, the last 4 of 512."""

    def order(positions: int, channels: int) -> str:
        Q_A, Q_S = torch.empty(9 * channels, 9 * channels), torch.empty(channels, channels)
        return contraction.cheapest_order(positions, Q_A, Q_S)

    assert [order(1, 512), order(4, 512), order(16, 256), order(256, 64)] == ["gram", "gram", "project", "form"]
    # What the cheap order saves: G of every sample, in the last block 9.4 MB, is neither formed nor squared.
    assert contraction.cheapest_order(4, torch.empty(8, 8), torch.empty(2, 2), draws=100) != "gram"


def test_chunks_of_patches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = conv_net(), torch.randn(10, 1, 6, 6)
    whole = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact")
    monkeypatch.setattr(contraction, "CHUNK_ELEMENTS", 200)
    assert_same(fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact"), whole)


def test_more_logits_than_are_sent_back_at_once() -> None:
    model, x = nn.Sequential(nn.Linear(3, 19)), torch.randn(6, 3)
    factor = fit_factors(model, batches_of(x), seed=SEED, output_fisher="exact").layers["0"]
    block = gauss_newton(layer_jacobian(model, x, "0"), bernoulli(model, x))
    torch.testing.assert_close(factor.corrected.sum(), block.trace())


def test_fitting_leaves_the_model_as_it_was() -> None:
    model, x = conv_net(), torch.randn(4, 1, 6, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = jacobian(model, x)
    with torch.no_grad():
        fit_factors(model, batches_of(x), seed=SEED)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert gradients.keys() == dict(model.named_parameters()).keys()


def test_resnet_factors_cover_all_but_the_norms() -> None:
    """At 32 px eight of nine input columns of the last block are padding, on which LAPACK was measured to fail."""
    model = torchvision.models.resnet18(num_classes=112).float().eval()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float32)
    factors = fit_factors(model, batches_of(x), seed=SEED, bn="frozen")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert len(factors.layers) == 21
    assert sum(sizes[name] for name in factors.parameter_names) == 11_224_368
    assert sum(sizes[name] for name in factors.record.uncovered) == sum(sizes.values()) - 11_224_368
    assert all(bool(torch.isfinite(layer.corrected).all()) for layer in factors.layers.values())


def test_frozen_norms_are_left_out_and_said_so() -> None:
    factors = fit_factors(conv_net(), batches_of(torch.randn(4, 1, 6, 6)), seed=SEED, bn="frozen")
    assert factors.norms == {}
    assert factors.manifest()["uncovered"] == ["1.weight", "1.bias"]
    assert "1.weight" not in factors.manifest()["covered"]


def test_manifest_says_how_the_factors_were_made() -> None:
    manifest = fit_factors(conv_net(), batches_of(torch.randn(4, 1, 6, 6)), seed=SEED, num_draws=3).manifest()
    expected = {"seed": SEED, "num_draws": 3, "output_fisher": "sampled", "bn": "exact", "rows": 4, "uncovered": []}
    assert expected.items() <= manifest.items()
    assert set(manifest["covered"]) == set(dict(conv_net().named_parameters()))


def test_progress_counts_rows_and_layers() -> None:
    seen: list[tuple[str, int]] = []
    x = torch.randn(5, 3)
    fit_factors(nn.Sequential(nn.Linear(3, 2)), batches_of(x, size=3), seed=SEED, progress=lambda *at: seen.append(at))
    assert seen == [
        ("covariances", 3),
        ("covariances", 5),
        ("eigenbases", 1),
        ("eigenbases", 2),
        ("eigenvalues", 3),
        ("eigenvalues", 5),
    ]


class Repeated(nn.Module):
    """Runs its layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(self.layer(x))
        return result


class Unused(nn.Module):
    """Has a layer that its forward pass, or only its output, ignores."""

    def __init__(self, *, run: bool) -> None:
        super().__init__()
        self.layer, self.spare, self.run = nn.Linear(3, 3), nn.Linear(3, 3), run

    def forward(self, x: Tensor) -> Tensor:
        if self.run:
            self.spare(x)
        result: Tensor = self.layer(x)
        return result


class Overwriting(nn.Module):
    """Overwrites the input of its first layer after the layer ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        hidden = self.layer(x)
        with torch.no_grad():
            x.zero_()
        result: Tensor = self.head(hidden)
        return result


class FunctionallyTied(nn.Module):
    """Uses a layer's weight a second time, past the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.tanh(self.layer(x)) @ self.layer.weight)
        return result


def hooked() -> nn.Module:
    """A layer whose output a hook doubles after it was recorded."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].register_forward_pre_hook(lambda module, arguments: (arguments[0] * 2,))
    model[0].register_forward_hook(lambda module, arguments, output: output * 2)
    return model


def test_functionally_tied_parameters_and_hooks_are_noticed_with_single_precision_too() -> None:
    for model, name in ((FunctionallyTied(), "layer"), (hooked(), "0")):
        with pytest.raises(UnsupportedLayerError, match=rf"do not explain the gradient.*: {name}$"):
            fit_factors(model.float(), batches_of(torch.randn(4, 3, dtype=torch.float32)), seed=SEED)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (FunctionallyTied, r"do not explain the gradient.*: layer$"),
        (Repeated, "layer runs more than once"),
        (lambda: Unused(run=False), "not used by the forward pass.*spare"),
        (lambda: Unused(run=True), "do not depend on spare"),
        (Overwriting, "input of layer is overwritten"),
    ],
)
def test_layers_without_one_input_and_one_output_are_refused_by_name(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(UnsupportedLayerError, match=message):
        fit_factors(make(), batches_of(torch.randn(4, 3)), seed=SEED)


def test_train_mode_is_refused() -> None:
    with pytest.raises(TrainingModeError, match="BatchNorm2d"):
        fit_factors(conv_net().train(), batches_of(torch.randn(4, 1, 6, 6)), seed=SEED)


def test_non_finite_weights_are_reported_by_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="0 \\(S\\)"):
        fit_factors(model, batches_of(torch.randn(9, 3)), seed=SEED)


def test_images_must_come_with_row_indices_and_give_logits() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match="4 samples need as many row indices"):
        fit_factors(nn.Linear(3, 2), lambda: [(x, None, torch.arange(3))], seed=SEED)
    with pytest.raises(ValueError, match=r"logits \[B, k\], not to \(4, 1, 2\)"):
        fit_factors(nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (1, 2))), batches_of(x), seed=SEED)


def test_passes_over_different_rows_are_refused() -> None:
    x = torch.randn(4, 3)
    lengths = iter([4, 3])

    def shrinking() -> list[tuple[Tensor, None, Tensor]]:
        count = next(lengths)
        return [(x[:count], None, torch.arange(count))]

    with pytest.raises(ValueError, match="saw 4 and 3 rows"):
        fit_factors(nn.Linear(3, 2), shrinking, seed=SEED)
    with pytest.raises(ValueError, match="no rows"):
        fit_factors(nn.Linear(3, 2), list, seed=SEED)


def test_contradictory_arguments_are_refused() -> None:
    model, batches = nn.Linear(3, 2), batches_of(torch.randn(4, 3))
    with pytest.raises(ValueError, match="'sampled' or 'exact'"):
        fit_factors(model, batches, seed=SEED, output_fisher="empirical")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs output_fisher='exact'"):
        fit_factors(model, batches, seed=SEED, output_curvature=identity_curvature)
    with pytest.raises(ValueError, match="at least 1"):
        fit_factors(model, batches, seed=SEED, num_draws=0)


def test_factors_move_between_floating_types() -> None:
    factors = fit_factors(conv_net(), batches_of(torch.randn(4, 1, 6, 6)), seed=SEED)
    single = factors.to("cpu", torch.float32)
    assert {layer.corrected.dtype for layer in single.layers.values()} == {torch.float32}
    assert single.norms["1"].block.vectors.dtype == torch.float32
    assert single.record == replace(factors.record)
