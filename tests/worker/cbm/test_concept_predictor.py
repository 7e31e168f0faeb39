"""Architectures."""

import copy
from typing import Any

import pytest
import torch
from torchvision.models import resnet18

from worker.cbm.concept_predictor import build_concept_predictor, with_head_rows

SMALL: dict[str, Any] = {"name": "small_conv", "width": 8, "image_size": 8, "channels": 3}


def test_full_resnet18_has_torchvisions_parameters_and_buffers() -> None:
    ours = build_concept_predictor({"name": "resnet18", "stem": "full", "width": 64, "image_size": 224}, 7)
    theirs = {name: value.shape for name, value in resnet18().state_dict().items() if not name.startswith("fc.")}
    found = {name.removeprefix("backbone."): value.shape for name, value in ours.state_dict().items()}
    head = {name: found.pop(name) for name in ("head.weight", "head.bias")}
    assert found == theirs
    assert head == {"head.weight": (7, 512), "head.bias": (7,)}


def test_full_resnet18_computes_what_torchvision_computes() -> None:
    ours = build_concept_predictor({"name": "resnet18", "stem": "full", "width": 64, "image_size": 64}, 4).eval()
    theirs = resnet18(num_classes=4).eval()
    state = {name.removeprefix("backbone.").replace("head.", "fc."): v for name, v in ours.state_dict().items()}
    theirs.load_state_dict(state)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize("stem", ["full", "small"])
@pytest.mark.parametrize("size", [16, 32])
def test_narrow_resnet18_runs_in_both_modes(stem: str, size: int) -> None:
    model = build_concept_predictor({"name": "resnet18", "stem": stem, "width": 8, "image_size": size}, 5)
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    for net in (model.train(), model.eval()):
        logits = net(images)
        assert logits.shape == (3, 5)
        assert bool(torch.isfinite(logits).all())
    assert model.head.in_features == 64


def test_small_stem_keeps_the_images_size() -> None:
    """Stride 1 and no pooling before the first stage."""
    images, sizes = torch.zeros(1, 3, 32, 32), {}
    for stem in ("full", "small"):
        model = build_concept_predictor({"name": "resnet18", "stem": stem, "width": 8, "image_size": 32}, 2).eval()
        backbone: Any = model.backbone
        sizes[stem] = backbone.maxpool(backbone.conv1(images)).shape[-1]
    assert sizes == {"full": 8, "small": 32}


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 8), (1, 28), (3, 33)])
def test_small_conv_takes_any_size(channels: int, size: int) -> None:
    model = build_concept_predictor(SMALL | {"channels": channels, "image_size": size}, 6)
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 6)


def test_small_conv_has_the_size_it_says() -> None:
    model = build_concept_predictor(SMALL | {"width": 32, "channels": 1}, 10)
    assert 50_000 < sum(value.numel() for value in model.parameters()) < 60_000


def test_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown architecture 'vgg'"):
        build_concept_predictor({"name": "vgg"}, 3)


def test_initial_weights_follow_the_seed_and_nothing_else() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, other = (build_concept_predictor(SMALL, 3, seed=seed) for seed in (4, 5))
    assert torch.equal(torch.rand(1), expected)
    second = build_concept_predictor(SMALL, 3, seed=4)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize("rows", [[0, 2], [3, 1, 0], [1], [0, 1, 2, 3]])
def test_head_rows_are_kept_in_the_given_order(rows: list[int]) -> None:
    model = build_concept_predictor(SMALL, 4).eval()
    before = copy.deepcopy(model.state_dict())
    fewer = with_head_rows(model, rows)
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(fewer(images), model(images)[:, rows], rtol=1e-5, atol=1e-6)
        for value in fewer.parameters():  # a copy: nothing is shared
            value.zero_()
    assert fewer.head.out_features == len(rows)
    assert not fewer.training
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
