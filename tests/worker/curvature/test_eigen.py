"""Eigenbases of matrices that LAPACK dislikes."""

import re
from typing import Any

import pytest
import scipy.linalg
import torch
from torch import Tensor

from worker.curvature.eigen import Eigenbasis, decompose, decompose_each, decompose_gram
from worker.curvature.errors import DecompositionError, NonFiniteError

# The backward error of float64 eigensolvers is a small multiple of machine precision times the norm (at most some 100).
ROUNDING = 1e-11


def assert_decomposes(basis: Eigenbasis, matrix: Tensor) -> None:
    reconstructed = basis.vectors * basis.values @ basis.vectors.T
    assert (reconstructed - matrix).norm() <= ROUNDING * (1 + matrix.norm())
    identity = torch.eye(len(basis.values))
    torch.testing.assert_close(basis.vectors.T @ basis.vectors, identity, atol=ROUNDING, rtol=0)
    assert bool((basis.values >= 0).all())


def test_full_rank_matrix() -> None:
    rows = torch.randn(50, 20)
    assert_decomposes(decompose(rows.T @ rows, "layer"), rows.T @ rows)


def test_rank_deficient_matrix() -> None:
    rows = torch.randn(5, 40)
    assert_decomposes(decompose(rows.T @ rows, "layer"), rows.T @ rows)


def test_zero_rows_and_columns_are_left_out_of_the_basis() -> None:
    """As in a 3×3 convolution on 1×1 maps, where padding leaves only the centre of every kernel alive."""
    rows = torch.zeros(30, 9 * 16)
    rows[:, 4::9] = torch.randn(30, 16)
    basis = decompose(rows.T @ rows, "layer")
    assert basis.vectors.shape == (144, 16)
    assert_decomposes(basis, rows.T @ rows)


def test_zero_matrix_has_an_empty_basis() -> None:
    basis = decompose(torch.zeros(6, 6), "layer")
    assert basis.vectors.shape == (6, 0)
    assert_decomposes(basis, torch.zeros(6, 6))


def test_float32_matrix_is_decomposed_in_float64() -> None:
    rows = torch.randn(30, 10, dtype=torch.float32)
    matrix = rows.T @ rows
    basis = decompose(matrix, "layer")
    assert basis.vectors.dtype == torch.float64
    assert_decomposes(basis, (matrix.double() + matrix.double().T) / 2)


def test_asymmetric_rounding_is_averaged_away() -> None:
    rows = torch.randn(30, 10)
    matrix = rows.T @ rows
    noise = 1e-3 * torch.randn(10, 10)
    assert_decomposes(decompose(matrix + noise - noise.T, "layer"), matrix)


def test_gram_form_equals_the_wide_form() -> None:
    rows = torch.randn(7, 40)
    rows[6] = rows[5]  # a repeated row: rank 6
    basis = decompose_gram(rows, "layer")
    assert basis.vectors.shape == (40, 6)
    assert_decomposes(basis, rows.T @ rows)
    assert bool((basis.values.diff() >= 0).all())


def test_gram_form_stays_orthogonal_over_many_orders_of_magnitude() -> None:
    directions = torch.linalg.qr(torch.randn(60, 8))[0].T
    rows = torch.logspace(0, -6, 8)[:, None] * directions
    assert_decomposes(decompose_gram(rows, "layer"), rows.T @ rows)


def test_gram_form_of_zero_rows_has_an_empty_basis() -> None:
    assert decompose_gram(torch.zeros(3, 5), "layer").vectors.shape == (5, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_matrices_are_refused_by_layer(bad: float) -> None:
    matrix = torch.eye(4)
    matrix[1, 2] = bad
    with pytest.raises(NonFiniteError, match=re.escape("layer4.0.conv1 (A)")):
        decompose(matrix, "layer4.0.conv1 (A)")
    with pytest.raises(NonFiniteError, match=re.escape("fc (S)")):
        decompose_gram(matrix, "fc (S)")


def stack() -> Tensor:
    """Full rank, rank deficient, with a zero row and column, and zero."""
    rows = torch.randn(4, 9, 6)
    rows[1, 3:] = 0
    rows[2, :, 4] = 0
    rows[3] = 0
    return rows.mT @ rows


def test_stacks_of_small_matrices_are_decomposed_each() -> None:
    matrices = stack()
    basis = decompose_each(matrices, "layer")
    for matrix, vectors, values in zip(matrices, basis.vectors, basis.values, strict=True):
        assert_decomposes(Eigenbasis(vectors, values), matrix)


def test_second_driver_takes_over_for_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = stack()
    monkeypatch.setattr(torch.linalg, "eigh", failing_eigh)
    basis = decompose_each(matrices, "layer")
    for matrix, vectors, values in zip(matrices, basis.vectors, basis.values, strict=True):
        assert_decomposes(Eigenbasis(vectors, values), matrix)


def test_non_finite_stacks_are_refused_by_layer() -> None:
    matrices = stack()
    matrices[2, 0, 1] = torch.nan
    with pytest.raises(NonFiniteError, match=re.escape("features.3 (A)")):
        decompose_each(matrices, "features.3 (A)")


def failing_eigh(matrix: Tensor) -> None:
    raise torch.linalg.LinAlgError("failed to converge")  # type: ignore[attr-defined]


def nan_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return torch.full((len(matrix),), torch.nan), torch.full_like(matrix, torch.nan)


@pytest.mark.parametrize("first_driver", [failing_eigh, nan_eigh])
def test_second_driver_takes_over(monkeypatch: pytest.MonkeyPatch, first_driver: Any) -> None:
    rows = torch.randn(5, 12)
    monkeypatch.setattr(torch.linalg, "eigh", first_driver)
    assert_decomposes(decompose(rows.T @ rows, "layer"), rows.T @ rows)


def test_failure_of_both_drivers_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_scipy(*args: Any, **kwargs: Any) -> None:
        raise scipy.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(torch.linalg, "eigh", failing_eigh)
    monkeypatch.setattr(scipy.linalg, "eigh", failing_scipy)
    with pytest.raises(DecompositionError, match=re.escape("conv1 (A)")):
        decompose(torch.eye(3), "conv1 (A)")
