"""The damped inverse against dense linear algebra."""

import pytest
import torch

from tests.worker.curvature.dense import assemble, batches_of, conv_net, random_vector
from worker.curvature.ekfac import EKFAC
from worker.curvature.factors import Factors, fit_factors

DAMPING = 0.03


def fitted(rows: int) -> Factors:
    return fit_factors(conv_net(), batches_of(torch.randn(rows, 1, 6, 6)), seed=5)


@pytest.mark.parametrize("rows", [2, 60])
def test_solve_is_the_dense_inverse_of_the_damped_matrix(rows: int) -> None:
    """Few rows give thin bases (curvature zero on their complement), many give square ones."""
    factors = fitted(rows)
    like = random_vector(conv_net(), factors.parameter_names)
    operator = EKFAC(factors, DAMPING)
    matrix = assemble(operator.matmul, like)
    inverse = assemble(operator.solve, like)
    torch.testing.assert_close(matrix, matrix.T)
    torch.testing.assert_close(inverse, torch.linalg.inv(matrix))
    assert torch.linalg.eigvalsh(matrix).min() >= DAMPING * (1 - 1e-9)


def test_matrix_is_block_diagonal_over_layers_with_the_factors_as_blocks() -> None:
    factors = fitted(60)
    name = "3"
    layer = factors.layers[name]
    like = random_vector(conv_net(), layer.parameters.names)
    matrix = assemble(EKFAC(factors, DAMPING).matmul, like)
    d_out, d_in = layer.parameters.shape
    Q = torch.einsum("os,ia->oisa", layer.S.vectors, layer.A.vectors)
    dense = torch.einsum("oisa,sa,pjsa->oipj", Q, layer.corrected, Q)
    # The operator's vector is (weight, bias), the joint matrix has the bias as last column.
    joint = torch.arange(d_out * d_in).view(d_out, d_in)
    order = torch.cat([joint[:, :-1].flatten(), joint[:, -1]])
    expected = dense.reshape(d_out * d_in, -1)[order][:, order] + DAMPING * torch.eye(d_out * d_in)
    torch.testing.assert_close(matrix, expected)


def test_whole_layers_may_be_left_out_of_a_vector() -> None:
    factors = fitted(10)
    everything = random_vector(conv_net(), factors.parameter_names)
    operator = EKFAC(factors, DAMPING)
    part = {name: everything[name] for name in ("7.bias", "1.weight", "1.bias", "7.weight")}
    solved = operator.solve(part)
    assert list(solved) == list(part)
    for name, value in solved.items():
        torch.testing.assert_close(value, operator.solve(everything)[name])


def test_uncovered_and_incomplete_entries_are_refused_by_name() -> None:
    model, x = conv_net(), torch.randn(4, 1, 6, 6)
    operator = EKFAC(fit_factors(model, batches_of(x), seed=5, bn="frozen"), DAMPING)
    with pytest.raises(ValueError, match=r"covers 1\.bias, 1\.weight"):
        operator.solve(random_vector(model))
    with pytest.raises(ValueError, match=r"3 needs all of 3\.weight, 3\.bias"):
        operator.solve(random_vector(model, ("3.weight",)))


@pytest.mark.parametrize("damping", [0.0, -1.0, float("nan"), float("inf")])
def test_damping_must_be_positive_and_finite(damping: float) -> None:
    with pytest.raises(ValueError, match="damping must be positive"):
        EKFAC(fitted(2), damping)
