"""Every backbone on every road that a model takes: training mode, curvature factors, Gauss-Newton products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor

from tests.worker.curvature.dense import batches_of, bernoulli, flat_jacobian, flatten, random_norms
from tests.worker.threads import one_thread
from worker.cbm.backbones import IMAGENET_MEAN, IMAGENET_STD
from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.curvature.factors import fit_factors
from worker.curvature.ggn import GGN

__all__ = ["one_thread"]

TINY: list[dict[str, Any]] = [
    {"name": "resnet18", "stem": "small", "width": 8},
    {"name": "resnet34", "stem": "small", "width": 8},
    {"name": "resnet50", "stem": "small", "width": 8},
    {"name": "mobilenet_v3_small", "stem": "small", "width_multiplier": 0.1},
    {"name": "mobilenet_v3_large", "stem": "small", "width_multiplier": 0.1},
    {"name": "efficientnet_b0", "stem": "small", "width_multiplier": 0.1},
]
FULL: list[tuple[dict[str, Any], int]] = [
    ({"name": "resnet18", "width": 64}, 512),
    ({"name": "resnet34", "width": 64}, 512),
    ({"name": "resnet50", "width": 64}, 2048),
    ({"name": "mobilenet_v3_small", "width_multiplier": 1.0}, 576),
    ({"name": "mobilenet_v3_large", "width_multiplier": 1.0}, 960),
    ({"name": "efficientnet_b0", "width_multiplier": 1.0}, 1280),
]


def names(value: Any) -> str:
    return str(value["name"]) if isinstance(value, dict) else str(value)


def images_of(n: int, size: int = 16) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize(("architecture", "num_features"), FULL, ids=names)
def test_at_full_size_names_and_shapes_are_torchvisions(architecture: dict[str, Any], num_features: int) -> None:
    ours = build_concept_predictor(architecture | {"stem": "full", "image_size": 64}, 3)
    theirs = getattr(torchvision.models, architecture["name"])().state_dict()
    expected = {k: v.shape for k, v in theirs.items() if not k.startswith(("fc.", "classifier."))}
    assert {k: v.shape for k, v in ours.backbone.state_dict().items()} == expected
    assert ours.head.in_features == num_features


@pytest.mark.parametrize("architecture", TINY, ids=names)
def test_equal_passes_in_train_mode_are_equal(architecture: dict[str, Any]) -> None:
    """Nothing is dropped at random."""
    model = build_concept_predictor(architecture, 4).train()
    images = images_of(6)
    with torch.no_grad():
        assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("architecture", TINY, ids=names)
def test_factors_cover_every_parameter(architecture: dict[str, Any]) -> None:
    model = random_norms(build_concept_predictor(architecture, 3))
    factors = fit_factors(model, batches_of(images_of(8)), seed=0)
    assert set(factors.parameter_names) == dict(model.named_parameters()).keys()
    assert factors.manifest()["uncovered"] == []


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("architecture", TINY, ids=names)
def test_products_are_those_of_the_dense_gauss_newton(architecture: dict[str, Any], double: None) -> None:
    model = random_norms(build_concept_predictor(architecture, 2).double())
    images = images_of(3, 8).double()
    jacobian = flat_jacobian(model, images)
    generator = torch.Generator().manual_seed(1)
    vector = {
        name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in model.named_parameters()
    }
    along = jacobian @ flatten(vector)
    expected = torch.einsum("nkp,nk,nk->p", jacobian, bernoulli(model, images), along) / len(images)
    found = flatten(GGN(model, images).matmul(vector))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 * float(expected.norm()))


@pytest.mark.parametrize("architecture", [TINY[0], TINY[3], TINY[5]], ids=names)
def test_imagenet_normalisation_is_part_of_the_model(architecture: dict[str, Any]) -> None:
    plain: ConceptPredictor = build_concept_predictor(architecture, 4).eval()
    normalising = build_concept_predictor(architecture | {"normalisation": "imagenet"}, 4).eval()
    assert plain.state_dict().keys() == normalising.state_dict().keys()
    images = images_of(5)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        torch.testing.assert_close(normalising(images), plain(((images + 1) / 2 - mean) / std), rtol=1e-4, atol=1e-5)
