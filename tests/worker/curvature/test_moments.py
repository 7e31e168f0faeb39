"""Second moments, kept as rows while there are few and as a sum from then on."""

import pytest
import torch

from worker.curvature.moments import SecondMoment

WIDTH = 10


def moment_of(rows: torch.Tensor) -> SecondMoment:
    moment = SecondMoment(WIDTH)
    for part in torch.split(rows, 3):
        moment.add_rows(part)
    return moment


@pytest.mark.parametrize("count", [1, 4, 9, 10, 40])
def test_mean_is_decomposed_on_either_side_of_the_width(count: int) -> None:
    rows = torch.randn(count, WIDTH)
    moment = moment_of(rows)
    assert (moment.total is None) == (count < WIDTH)
    mean = rows.T @ rows / 7
    basis = moment.decompose(7, "layer")
    torch.testing.assert_close(basis.vectors * basis.values @ basis.vectors.T, mean)
    torch.testing.assert_close(moment.matrix() / 7, mean)


@pytest.mark.parametrize("first", [0, 4, 9, 20])
@pytest.mark.parametrize("second", [0, 4, 9, 20])
def test_sum_is_that_of_all_rows_and_leaves_the_parts_alone(first: int, second: int) -> None:
    a, b = torch.randn(first, WIDTH), torch.randn(second, WIDTH)
    parts = moment_of(a), moment_of(b)
    total = parts[0] + parts[1]
    torch.testing.assert_close(total.matrix(), a.T @ a + b.T @ b)
    total.add_rows(torch.ones(1, WIDTH))
    torch.testing.assert_close(parts[0].matrix(), a.T @ a)
    torch.testing.assert_close(parts[1].matrix(), b.T @ b)


def test_no_rows_have_an_empty_basis() -> None:
    assert SecondMoment(WIDTH).decompose(3, "layer").vectors.shape == (WIDTH, 0)
