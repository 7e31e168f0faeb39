"""Gauss-Newton products and linearisations against the dense Jacobian."""

import copy
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn import functional
from torch.nn.utils import parametrize

from tests.worker.curvature.dense import (
    assemble,
    bernoulli,
    conv_net,
    flat_jacobian,
    flatten,
    gauss_newton,
    random_norms,
    random_vector,
)
from worker.curvature.errors import TrainingModeError, UnsupportedLayerError
from worker.curvature.ggn import GGN
from worker.curvature.linearization import Linearization


class Residual(nn.Module):
    """A residual block whose in-place ReLUs overwrite layer outputs and sums, and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2)
        self.twice = nn.Linear(2, 2)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu_(self.stem(x))
        out = self.norm(self.conv(x))
        out += x
        pooled = functional.relu_(out).mean((2, 3))
        result: Tensor = self.head(torch.tanh(self.twice(torch.tanh(self.twice(pooled)))))
        return result


class Overwritten(nn.Module):
    """An in-place function that is not idempotent, on the output of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x.flatten(1)[:, :4])
        hidden += 1
        result: Tensor = self.head(hidden.sigmoid_())
        return result


class Spare(nn.Module):
    """Has a layer that its forward pass ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(x)
        return result


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def positive_linear() -> nn.Module:
    """A Linear whose weight is a function of its parameter: no rule may apply to it."""
    return parametrize.register_parametrization(nn.Linear(36, 3), "weight", Exponential())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions, BatchNorm, in-place ReLU": conv_net,
    "residual block, layer used twice": lambda: random_norms(Residual()),
    "output overwritten in place": Overwritten,
    "layers without rules": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 4), nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 3), nn.Hardtanh()
    ),
    "groups and other paddings": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Flatten(),
        nn.Linear(64, 3),
    ),
    "depthwise, dilation, stride": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same", dilation=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=4, bias=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 1, groups=2),
        nn.Flatten(),
        nn.Linear(54, 3),
    ),
    "parametrised weight": lambda: nn.Sequential(nn.Flatten(), positive_linear(), nn.Tanh(), nn.Linear(3, 3)),
    "BatchNorm without affine parameters": lambda: random_norms(
        nn.Sequential(nn.Conv2d(1, 2, 5), nn.BatchNorm2d(2, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    ),
    "one-dimensional BatchNorm first": lambda: random_norms(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3))
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_product_is_the_dense_gauss_newton(make: Callable[[], nn.Module]) -> None:
    model, x = make().eval(), torch.randn(5, 1, 6, 6)
    ggn = GGN(model, x, chunk_size=2)
    vector = random_vector(model)
    F = gauss_newton(flat_jacobian(model, x), bernoulli(model, x))
    for _ in range(2):  # a cached linearisation must survive its use
        torch.testing.assert_close(flatten(ggn.matmul(vector)), F @ flatten(vector))


def test_masks_of_labels_and_outputs_leave_curvature_out() -> None:
    model, x = conv_net(), torch.randn(7, 1, 6, 6)
    mask, output_mask = torch.rand(7, 3) > 0.4, torch.tensor([1.0, 0.0, 1.0])
    ggn = GGN(model, x, mask, output_mask=output_mask, chunk_size=3)
    F = gauss_newton(flat_jacobian(model, x), bernoulli(model, x, mask) * output_mask)
    matrix = assemble(ggn.matmul, random_vector(model))
    torch.testing.assert_close(matrix, F)
    head = {"7.weight": matrix[-51:-3], "7.bias": matrix[-3:]}
    assert not head["7.bias"][1].any()


def test_output_curvature_is_a_choice() -> None:
    model, x = conv_net(), torch.randn(4, 1, 6, 6)
    vector = random_vector(model)
    ggn = GGN(model, x, output_curvature=torch.ones_like)
    F = gauss_newton(flat_jacobian(model, x), torch.ones(4, 3))
    torch.testing.assert_close(flatten(ggn.matmul(vector)), F @ flatten(vector))


@pytest.mark.parametrize("cached_rows", [0, 5, 1024])
@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_chunks_and_caching_do_not_change_the_product(chunk_size: int, cached_rows: int) -> None:
    model, x, mask = conv_net(), torch.randn(11, 1, 6, 6), torch.rand(11, 3) > 0.5
    vector = random_vector(model)
    expected = flatten(GGN(model, x, mask).matmul(vector))
    ggn = GGN(model, x, mask, chunk_size=chunk_size, cached_rows=cached_rows)
    torch.testing.assert_close(flatten(ggn.matmul(vector)), expected)
    torch.testing.assert_close(flatten(ggn.matmul(vector)), expected)


def test_parameters_may_be_named() -> None:
    model, x = conv_net(), torch.randn(5, 1, 6, 6)
    names = ("7.bias", "3.weight", "1.bias")
    vector = random_vector(model, names)
    F = gauss_newton(flat_jacobian(model, x, names), bernoulli(model, x))
    product = GGN(model, x, parameters=names).matmul(vector)
    assert tuple(product) == names
    torch.testing.assert_close(flatten(product), F @ flatten(vector))


def test_frozen_parameters_are_constants_by_default() -> None:
    model = conv_net()
    model.get_submodule("0").requires_grad_(False)
    assert GGN(model, torch.randn(2, 1, 6, 6)).parameters == (
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
        "7.weight",
        "7.bias",
    )


def test_product_belongs_to_the_parameters_at_construction() -> None:
    model, x = conv_net(), torch.randn(5, 1, 6, 6)
    vector = random_vector(model)
    for cached_rows in (0, 1024):
        ggn = GGN(model, x, cached_rows=cached_rows)
        expected = flatten(ggn.matmul(vector))
        moved = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
        torch.testing.assert_close(flatten(ggn.matmul(vector)), expected)
        assert not torch.allclose(flatten(GGN(model, x).matmul(vector)), expected)
        model.load_state_dict(moved)


def test_products_leave_the_model_as_it_was() -> None:
    model, x = conv_net(), torch.randn(5, 1, 6, 6)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        GGN(model, x, parameters=("7.weight",)).matmul(random_vector(model, ("7.weight",)))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all("forward" not in module.__dict__ and not module._forward_hooks for module in model.modules())


def test_resnet_products_agree_with_functional_differentiation() -> None:
    """On ResNet-18, where linearising with torch.func.linearize was measured wrong."""
    model = random_norms(torchvision.models.resnet18(num_classes=4))
    x = torch.randn(2, 3, 32, 32)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    vector = random_vector(model)

    def logits(values: dict[str, Tensor]) -> Tensor:
        result: Tensor = functional_call(model, values, (x,))
        return result

    z, tangent = jvp(logits, (parameters,), (vector,))  # type: ignore[misc]  # has_aux would add a third result
    p = torch.sigmoid(z)
    (expected,) = vjp(logits, parameters)[1](p * (1 - p) * tangent / 2)
    product = GGN(model, x).matmul(vector)
    for name, value in expected.items():
        torch.testing.assert_close(product[name], value)


def test_linearization_products_are_those_of_the_jacobian() -> None:
    model, x = conv_net(), torch.randn(4, 1, 6, 6)
    names = tuple(dict(model.named_parameters()))
    vector, cotangent = random_vector(model), torch.randn(4, 3)
    J = flat_jacobian(model, x)
    linearization = Linearization(model, x, names)
    assert torch.equal(linearization.logits, model(x).detach())
    torch.testing.assert_close(linearization.jvp(vector), J @ flatten(vector))
    torch.testing.assert_close(flatten(linearization.vjp(cotangent)), torch.einsum("nkp,nk->p", J, cotangent))


def test_parameters_without_influence_have_zero_products() -> None:
    linearization = Linearization(Spare(), torch.randn(4, 3), ("spare.weight",))
    assert not linearization.jvp({"spare.weight": torch.ones(2, 3)}).any()
    assert not linearization.vjp(torch.ones(4, 2))["spare.weight"].any()


def test_bad_requests_are_refused() -> None:
    model, x = conv_net(), torch.randn(2, 1, 6, 6)
    with pytest.raises(TrainingModeError, match="1 \\(BatchNorm2d\\)"):
        GGN(copy.deepcopy(model).train(), x)
    with pytest.raises(KeyError, match="no such parameters: nine"):
        GGN(model, x, parameters=("7.weight", "nine"))
    with pytest.raises(ValueError, match="at least one row"):
        GGN(model, x[:0])
    with pytest.raises(ValueError, match=r"differ in their parameters: 0\.weight"):
        GGN(model, x).matmul(random_vector(model, ("1.weight", "1.bias", "3.weight", "3.bias", "7.weight", "7.bias")))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(UnsupportedLayerError, match=r"0\.weight = 1\.weight"):
        GGN(tied, torch.randn(2, 3))
