"""Arithmetic of parameter vectors."""

import pytest
import torch
from torch import nn

from worker.curvature import vectors

A = {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "y": torch.tensor([5.0])}
B = {"y": torch.tensor([-1.0]), "x": torch.tensor([[1.0, 0.0], [2.0, 1.0]])}


def test_arithmetic_goes_by_name_not_by_order() -> None:
    assert vectors.dot(A, B) == 1 + 6 + 4 - 5
    assert vectors.norm(A) == pytest.approx(55**0.5)
    combined = vectors.axpy(2.0, A, B)
    assert torch.equal(combined["x"], torch.tensor([[3.0, 4.0], [8.0, 9.0]]))
    assert torch.equal(combined["y"], torch.tensor([9.0]))
    assert torch.equal(vectors.scale(3.0, A)["y"], torch.tensor([15.0]))
    assert vectors.norm(vectors.zeros_like(A)) == 0
    assert vectors.dot({}, {}) == 0


def test_different_names_do_not_combine() -> None:
    with pytest.raises(ValueError, match="differ in their parameters: y"):
        vectors.dot(A, {"x": A["x"]})
    with pytest.raises(ValueError, match="differ in their parameters: y"):
        vectors.axpy(1.0, {"x": A["x"]}, A)


def test_ravel_and_unravel_are_inverse() -> None:
    flat = vectors.ravel(A)
    assert torch.equal(flat, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    back = vectors.unravel(flat, A)
    assert all(torch.equal(back[name], value) for name, value in A.items())


def test_rows_are_masked_in_a_copy() -> None:
    masked = vectors.zero_rows(A, [1], ["x"])
    assert torch.equal(masked["x"], torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert torch.equal(masked["y"], A["y"])
    assert float(A["x"][1, 0]) == 3


def test_parameters_become_a_detached_copy() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).requires_grad_(False))
    vector = vectors.from_parameters(model)
    assert list(vector) == ["0.weight", "0.bias"]
    vector["0.bias"].fill_(7)
    assert not bool((model.get_parameter("0.bias") == 7).any())
    assert not vector["0.weight"].requires_grad
    assert list(vectors.from_parameters(model, ["1.bias"])) == ["1.bias"]
    assert list(vectors.restrict(A, ["y"])) == ["y"]
