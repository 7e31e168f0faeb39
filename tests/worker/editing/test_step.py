"""Solves against dense curvature, lines, and BatchNorm's statistics, in double precision."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.worker.curvature.dense import bernoulli, flat_jacobian, flatten, gauss_newton, random_vector
from tests.worker.editing.rows import CONCEPTS, random_rows, tiny_net
from worker.cbm.concept_predictor import ConceptPredictor
from worker.curvature import vectors
from worker.curvature.factors import Factors, fit_factors
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN
from worker.editing.step import Curvature, Line, inverse_factors, outside_dropped, recompute_statistics

DAMPING = 0.05


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """The dense reference makes its identity matrices in the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def known(rows: LabelledImages) -> Tensor:
    return (rows.concepts != UNKNOWN).double()


def factors_of(model: ConceptPredictor, rows: LabelledImages) -> Factors:
    return fit_factors(model, lambda: [(rows.images, known(rows), torch.arange(len(rows)))], seed=1)


def dense_curvature(model: ConceptPredictor, rows: LabelledImages, weights: Tensor) -> Tensor:
    variances = bernoulli(model, rows.images, known(rows)) * weights[:, None]
    return gauss_newton(flat_jacobian(model, rows.images), variances)


def test_solution_is_that_of_the_weighted_masked_curvature() -> None:
    model, rows = tiny_net(), random_rows(30)
    weights = torch.rand(30) + 0.1
    weights /= weights.mean()
    u = random_vector(model)
    solve = Curvature(model, rows, weights, factors_of(model, rows), DAMPING).solve
    found = flatten(solve(u, iterations=300).vector)
    F = dense_curvature(model, rows, weights)
    system = F + DAMPING * torch.eye(len(F))
    # The solve stops at a residual of 1e-3 of ‖u‖; the error is at most that over the damping.
    assert float((system @ found - flatten(u)).norm() / flatten(u).norm()) <= 1.001e-3
    expected = torch.linalg.solve(system, flatten(u))
    assert float((found - expected).norm()) <= 1.001e-3 * float(flatten(u).norm()) / DAMPING
    # Neither the weights nor the masks are idle: other curvatures are far from this solution.
    for other in (
        dense_curvature(model, rows, torch.ones(30)),
        gauss_newton(flat_jacobian(model, rows.images), weights[:, None] * bernoulli(model, rows.images)),
    ):
        residual = (other + DAMPING * torch.eye(len(F))) @ found - flatten(u)
        assert float(residual.norm() / flatten(u).norm()) > 0.01


def test_dropped_rows_of_the_head_stay_and_the_rest_is_solved_without_them() -> None:
    model, rows, dropped = tiny_net(), random_rows(30), (1, 3)
    rows.concepts[:, list(dropped)] = UNKNOWN
    weights, u = torch.ones(30), random_vector(model)
    factors = factors_of(model, random_rows(30))
    found = Curvature(model, rows, weights, factors, DAMPING, dropped).solve(u, iterations=300).vector
    inside = flatten(outside_dropped({name: torch.ones_like(value) for name, value in u.items()}, dropped)).bool()
    assert int((~inside).sum()) == 2 * (model.head.in_features + 1)
    assert bool((flatten(found)[~inside] == 0).all())
    assert bool((found["head.weight"][[0, 2]] != 0).any())
    F = dense_curvature(model, rows, weights)[inside][:, inside]
    target = flatten(u)[inside]
    residual = (F + DAMPING * torch.eye(len(F))) @ flatten(found)[inside] - target
    assert float(residual.norm() / target.norm()) <= 1.001e-3


def test_factors_alone_leave_dropped_rows_too() -> None:
    model, rows = tiny_net(), random_rows(30)
    factors, u = factors_of(model, rows), random_vector(model)
    step = inverse_factors(u, factors, DAMPING, (2,))
    assert bool((step["head.weight"][2] == 0).all())
    assert bool((step["head.bias"][2] == 0).all())
    # What u says about a dropped row has no effect on the others either.
    louder = {name: value.clone() for name, value in u.items()}
    louder["head.weight"][2] = 1e6
    again = inverse_factors(louder, factors, DAMPING, (2,))
    for name, value in step.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=0)


def test_progress_counts_products() -> None:
    model, rows = tiny_net(), random_rows(10)
    seen: list[tuple[int, int]] = []
    curvature = Curvature(model, rows, torch.ones(10), factors_of(model, rows), 1e-4)
    solution = curvature.solve(
        random_vector(model), iterations=4, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert solution.iterations == 4


def test_points_on_a_line_are_measured_from_its_origin() -> None:
    model = tiny_net()
    origin, direction = vectors.from_parameters(model), random_vector(model)
    line = Line(model, direction)
    for scale in (0.5, 2.0, -1.0):  # each from the origin, not from the last point
        line.at(scale)
        for name, value in vectors.from_parameters(model).items():
            torch.testing.assert_close(value, origin[name] + scale * direction[name])
        assert line.distance() == pytest.approx(abs(scale) * vectors.norm(direction), rel=1e-12)
    line.at(0.0)
    for name, value in vectors.from_parameters(model).items():
        assert torch.equal(value, origin[name])


def two_norms(seed: int = 0) -> ConceptPredictor:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Flatten()]
    return ConceptPredictor(nn.Sequential(*layers), 18, CONCEPTS).double()


def direct_statistics(model: ConceptPredictor, chunks: list[Tensor]) -> dict[str, Tensor]:
    """Means over chunks of what each BatchNorm sees in train mode: mean and unbiased variance per channel."""
    sums: dict[str, list[Tensor]] = {}
    for chunk in chunks:
        x = chunk
        for number, layer in enumerate(model.backbone.children()):
            if isinstance(layer, nn.BatchNorm2d):
                mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
                sums.setdefault(f"backbone.{number}.running_mean", []).append(mean)
                sums.setdefault(f"backbone.{number}.running_var", []).append(variance)
                centred = (x - mean[:, None, None]) / (x.var((0, 2, 3), correction=0) + layer.eps).sqrt()[:, None, None]
                assert layer.affine
                x = centred * layer.weight[:, None, None] + layer.bias[:, None, None]
            else:
                x = layer(x)
    return {name: torch.stack(values).mean(0).detach() for name, values in sums.items()}


@pytest.mark.parametrize("chunks", [1, 4])
def test_statistics_are_those_of_the_rows_in_equal_chunks(chunks: int) -> None:
    model, images = two_norms(), random_rows(24).images
    expected = direct_statistics(model, list(images.chunk(chunks)))
    recompute_statistics(model, images, chunk_rows=24 // chunks)
    found = {name: value for name, value in model.named_buffers() if "running" in name}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    assert not model.training


def test_first_mean_is_that_of_all_rows_however_they_are_cut() -> None:
    model, images = two_norms(), random_rows(24).images
    recompute_statistics(model, images, chunk_rows=6)
    convolution = next(model.backbone.children())
    torch.testing.assert_close(
        model.get_buffer("backbone.1.running_mean"), convolution(images).mean((0, 2, 3)).detach()
    )


def test_statistics_hold_nothing_of_what_they_held() -> None:
    """Two histories, one of them broken beyond repair, end in the same statistics."""
    model, images = two_norms(), random_rows(20).images
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.train()
        other(1e6 * random_rows(9, seed=5).images)
        other.get_buffer("backbone.4.running_var").fill_(float("nan"))
    for net in (model, other):
        recompute_statistics(net, images, chunk_rows=7)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    norms = [module for module in other.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [norm.momentum for norm in norms] == [0.1, 0.1]


def test_statistics_change_no_parameter_and_need_no_norm() -> None:
    model, images = two_norms(), random_rows(8).images
    before = vectors.from_parameters(model)
    recompute_statistics(model, images)
    assert all(torch.equal(value, before[name]) for name, value in vectors.from_parameters(model).items())
    plain = ConceptPredictor(nn.Flatten(), 36, CONCEPTS).double()
    recompute_statistics(plain, images)
    assert not list(plain.buffers())
