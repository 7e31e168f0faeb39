"""Heads that lose or gain outputs."""

import pytest
import torch
from torch import Tensor, nn

from tests.worker.curvature.dense import batches_of, random_vector
from worker.curvature.blocks import LayerFactor
from worker.curvature.ekfac import EKFAC
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.surgery import add_outputs, drop_outputs


def net(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, outputs)
    )


def fitted(outputs: int = 4) -> Factors:
    return fit_factors(net(outputs), batches_of(torch.randn(50, 1, 4, 4)), seed=2)


def gradient_moment(layer: LayerFactor) -> Tensor:
    return layer.S.vectors * layer.S.values @ layer.S.vectors.T


def four_index(layer: LayerFactor) -> Tensor:
    Q = torch.einsum("os,ia->oisa", layer.S.vectors, layer.A.vectors)
    return torch.einsum("oisa,sa,pjsa->oipj", Q, layer.corrected, Q)


def test_dropping_outputs_keeps_the_block_of_the_others() -> None:
    factors = fitted()
    before = factors.layers["5"]
    after = drop_outputs(factors, "5", [2, 0]).layers["5"]
    assert after.parameters.weight_shape == (2, 5)
    torch.testing.assert_close(gradient_moment(after), gradient_moment(before)[[1, 3]][:, [1, 3]])
    identity = torch.eye(2)
    torch.testing.assert_close(after.S.vectors.T @ after.S.vectors, identity)


def test_corrected_eigenvalues_after_a_drop_are_the_sliced_factor_in_the_new_basis() -> None:
    factors = fitted()
    after = drop_outputs(factors, "5", [2]).layers["5"]
    sliced = four_index(factors.layers["5"])[[0, 1, 3]][:, :, [0, 1, 3]]
    diagonal = torch.einsum(
        "os,ia,oipj,ps,ja->sa", after.S.vectors, after.A.vectors, sliced, after.S.vectors, after.A.vectors
    )
    torch.testing.assert_close(after.corrected, diagonal)
    torch.testing.assert_close(after.corrected.sum(), torch.einsum("oioi->", sliced))


def test_added_outputs_have_the_mean_curvature_of_the_others() -> None:
    factors = fitted()
    before = four_index(factors.layers["5"])
    after = four_index(add_outputs(factors, "5", 2).layers["5"])
    torch.testing.assert_close(after[:4, :, :4], before)
    mean = torch.einsum("oioj->ij", before) / 4
    A = factors.layers["5"].A.vectors
    in_basis = A * torch.einsum("ia,ij,ja->a", A, mean, A) @ A.T
    torch.testing.assert_close(after[4, :, 4], in_basis)
    torch.testing.assert_close(after[5, :, 5], in_basis)
    assert not after[4, :, 5].any()
    assert not after[:4, :, 4:].any()


@pytest.mark.parametrize(
    "change", [lambda factors: drop_outputs(factors, "5", [1]), lambda factors: add_outputs(factors, "5", 3)]
)
def test_changed_factors_precondition_the_changed_model(change: object) -> None:
    assert callable(change)
    factors = change(fitted())
    outputs = factors.layers["5"].parameters.weight_shape[0]
    operator = EKFAC(factors, 0.1)
    vector = random_vector(net(outputs))
    back = operator.matmul(operator.solve(vector))
    for name, value in vector.items():
        torch.testing.assert_close(back[name], value)


def test_changes_are_recorded_and_leave_the_original_alone() -> None:
    factors = fitted()
    changed = add_outputs(drop_outputs(factors, "5", [0, 3]), "5", 1)
    assert changed.manifest()["adaptations"] == ["dropped 2 outputs of 5", "added 1 outputs to 5"]
    assert factors.manifest()["adaptations"] == []
    assert factors.layers["5"].parameters.weight_shape == (4, 5)
    assert changed.layers["3"] is factors.layers["3"]


def test_impossible_changes_are_refused() -> None:
    factors = fitted()
    with pytest.raises(ValueError, match=r"outputs 0\.\.3, not \[4, -1\]"):
        drop_outputs(factors, "5", [4, 1, -1])
    with pytest.raises(ValueError, match="leaves no layer"):
        drop_outputs(factors, "5", range(4))
    with pytest.raises(ValueError, match="cannot add 0"):
        add_outputs(factors, "5", 0)
    with pytest.raises(ValueError, match="0 is no Linear layer"):
        drop_outputs(factors, "0", [0])
    with pytest.raises(KeyError, match="9"):
        drop_outputs(factors, "9", [0])
