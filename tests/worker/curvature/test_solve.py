"""Conjugate gradients against a direct solver, and their guards."""

import pytest
import torch
from torch import Tensor

from tests.worker.curvature.dense import (
    batches_of,
    bernoulli,
    conv_net,
    flat_jacobian,
    flatten,
    gauss_newton,
    random_vector,
)
from worker.curvature.ekfac import EKFAC
from worker.curvature.errors import NonFiniteError
from worker.curvature.factors import fit_factors
from worker.curvature.ggn import GGN
from worker.curvature.solve import Operator, Stop, conjugate_gradients

DAMPING = 0.05


def dense(matrix: Tensor) -> Operator:
    """A matrix as an operator on vectors with one entry."""
    return lambda vector: {"v": matrix @ vector["v"]}


def positive(size: int) -> Tensor:
    root = torch.randn(size, size)
    return root @ root.T / size


def test_solution_is_that_of_a_direct_solver() -> None:
    F, u = positive(12), torch.randn(12)
    solution = conjugate_gradients(dense(F), {"v": u}, damping=DAMPING, max_iterations=40, tolerance=1e-12)
    assert solution.stop is Stop.CONVERGED
    assert solution.iterations == len(solution.quadratic) == len(solution.residual_norms) - 1
    torch.testing.assert_close(solution.vector["v"], torch.linalg.solve(F + DAMPING * torch.eye(12), u))


def test_preconditioned_solve_on_a_net_is_that_of_a_direct_solver() -> None:
    model, x = conv_net(), torch.randn(30, 1, 6, 6)
    ekfac = EKFAC(fit_factors(model, batches_of(x), seed=1), DAMPING)
    u = random_vector(model)
    F = gauss_newton(flat_jacobian(model, x), bernoulli(model, x))
    solution = conjugate_gradients(
        GGN(model, x).matmul, u, damping=DAMPING, precondition=ekfac.solve, max_iterations=200, tolerance=1e-10
    )
    expected = torch.linalg.solve(F + DAMPING * torch.eye(len(F)), flatten(u))
    # The error is at most the residual, 1e-10 of ‖u‖, over the damping.
    torch.testing.assert_close(flatten(solution.vector), expected, atol=1e-7, rtol=0)


def test_a_few_preconditioned_iterations_go_farther_than_plain_ones() -> None:
    """At a damping well below the mean eigenvalue, 1e-2 here; six iterations are what an edit can afford."""
    model, x, damping = conv_net(), torch.randn(60, 1, 6, 6), 1e-4
    ekfac = EKFAC(fit_factors(model, batches_of(x), seed=1), damping)
    u, ggn = random_vector(model), GGN(model, x)
    best = conjugate_gradients(ggn.matmul, u, damping=damping, max_iterations=300).quadratic[-1]
    plain = conjugate_gradients(ggn.matmul, u, damping=damping, max_iterations=6).quadratic[-1]
    ahead = conjugate_gradients(ggn.matmul, u, damping=damping, precondition=ekfac.solve, max_iterations=6).quadratic[
        -1
    ]
    assert plain / best < 0.6
    assert ahead / best > 0.7


def test_exact_preconditioner_needs_one_iteration() -> None:
    F, u = positive(9), torch.randn(9)
    inverse = torch.linalg.inv(F + DAMPING * torch.eye(9))
    solution = conjugate_gradients(dense(F), {"v": u}, damping=DAMPING, precondition=dense(inverse))
    assert solution.iterations == 1
    assert solution.stop is Stop.CONVERGED


def test_iterations_are_limited_and_the_history_is_true() -> None:
    F, u = positive(20), torch.randn(20)
    A = F + DAMPING * torch.eye(20)
    solution = conjugate_gradients(dense(F), {"v": u}, damping=DAMPING, max_iterations=5, keep_iterates=True)
    assert solution.stop is Stop.MAX_ITERATIONS
    assert solution.iterations == 5
    assert len(solution.iterates) == 5
    for place, iterate in enumerate(solution.iterates):
        v = iterate["v"]
        assert float((u - A @ v).norm()) == pytest.approx(solution.residual_norms[place + 1], rel=1e-9)
        assert float(v @ A @ v / 2 - u @ v) == pytest.approx(solution.quadratic[place], rel=1e-9)
    assert torch.equal(solution.iterates[-1]["v"], solution.vector["v"])
    assert list(solution.quadratic) == sorted(solution.quadratic, reverse=True)
    assert solution.relative_residual == solution.residual_norms[-1] / float(u.norm())


def test_right_hand_side_keeps_its_names_shapes_and_values() -> None:
    u = {"b": torch.randn(3, 2), "a": torch.randn(4)}
    before = {name: value.clone() for name, value in u.items()}
    reordered: Operator = lambda vector: {name: vector[name] for name in ("a", "b")}  # noqa: E731
    solution = conjugate_gradients(reordered, u, damping=1.0)
    for name, value in u.items():
        torch.testing.assert_close(solution.vector[name], value / 2)
        assert torch.equal(value, before[name])


def test_zero_right_hand_side_has_the_zero_solution() -> None:
    def never(vector: dict[str, Tensor]) -> dict[str, Tensor]:
        raise AssertionError("no product is needed")

    solution = conjugate_gradients(never, {"v": torch.zeros(3)}, damping=DAMPING)
    assert solution.stop is Stop.ZERO_RIGHT_HAND_SIDE
    assert (solution.iterations, solution.relative_residual) == (0, 0.0)
    assert torch.equal(solution.vector["v"], torch.zeros(3))


def test_negative_curvature_stops_at_the_last_good_iterate() -> None:
    A, u = torch.diag(torch.tensor([4.0, 1.0, -1.0])), torch.tensor([1.0, 1.0, 0.3])
    solution = conjugate_gradients(dense(A), {"v": u}, damping=0.0, max_iterations=10)
    assert solution.stop is Stop.NEGATIVE_CURVATURE
    assert 0 < solution.iterations < 3
    assert solution.quadratic[-1] < 0


def test_negative_curvature_at_once_leaves_the_zero_vector() -> None:
    solution = conjugate_gradients(dense(-torch.eye(3)), {"v": torch.ones(3)}, damping=0.5)
    assert (solution.stop, solution.iterations) == (Stop.NEGATIVE_CURVATURE, 0)
    assert torch.equal(solution.vector["v"], torch.zeros(3))


def test_indefinite_preconditioner_is_noticed() -> None:
    solution = conjugate_gradients(
        dense(torch.eye(3)), {"v": torch.ones(3)}, damping=0.5, precondition=dense(-torch.eye(3))
    )
    assert (solution.stop, solution.iterations) == (Stop.INDEFINITE_PRECONDITIONER, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_numbers_raise_with_their_place(bad: float) -> None:
    u, broken = torch.ones(3), dense(torch.full((3, 3), bad))
    with pytest.raises(NonFiniteError, match="right-hand side"):
        conjugate_gradients(dense(torch.eye(3)), {"v": u * bad}, damping=DAMPING)
    with pytest.raises(NonFiniteError, match="curvature product of iteration 1"):
        conjugate_gradients(broken, {"v": u}, damping=DAMPING)
    with pytest.raises(NonFiniteError, match="preconditioned residual"):
        conjugate_gradients(dense(torch.eye(3)), {"v": u}, damping=DAMPING, precondition=broken)


def test_negative_damping_is_refused() -> None:
    with pytest.raises(ValueError, match="damping must not be negative"):
        conjugate_gradients(dense(torch.eye(3)), {"v": torch.ones(3)}, damping=-0.1)
