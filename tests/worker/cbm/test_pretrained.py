"""Pretrained weights are taken whole or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.cbm.pretrained import load_pretrained
from worker.cbm.weights import WeightsDoNotFit

MOBILE: dict[str, Any] = {"name": "mobilenet_v3_small", "stem": "full", "width_multiplier": 1.0, "image_size": 32}


@pytest.fixture(scope="module")
def theirs() -> Any:
    torch.manual_seed(3)
    return torchvision.models.mobilenet_v3_small().eval()


def predictor(**given: Any) -> ConceptPredictor:
    return build_concept_predictor(MOBILE | given, 3)


def test_torchvisions_state_dict_makes_its_features(tmp_path: Path, theirs: Any) -> None:
    """As documented: the whole state dict, classifier and all."""
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = predictor()
    load_pretrained(ours.backbone, tmp_path / "weights.safetensors")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = torch.flatten(theirs.avgpool(theirs.features(images)), 1)
        torch.testing.assert_close(ours.backbone.eval()(images), expected)


def dropped(state: dict[str, Tensor]) -> None:
    del state["features.0.0.weight"]


def added(state: dict[str, Tensor]) -> None:
    state["features.99.weight"] = torch.zeros(1)


def unprintable(state: dict[str, Tensor]) -> None:
    state["features\n<b>"] = torch.zeros(1)


def reshaped(state: dict[str, Tensor]) -> None:
    state["features.0.0.weight"] = torch.zeros(16, 3, 5, 5)


def infinite(state: dict[str, Tensor]) -> None:
    state["features.0.0.weight"] = torch.full((16, 3, 3, 3), torch.inf)


def negative(state: dict[str, Tensor]) -> None:
    state["features.0.1.running_var"] = torch.full((16,), -1.0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (dropped, "1 tensors are missing, the first is features.0.0.weight"),
        (added, "1 tensors do not belong to the backbone, the first is features.99.weight"),
        (unprintable, "1 tensors do not belong to the backbone$"),
        (reshaped, r"features.0.0.weight has shape \[16, 3, 5, 5\], expected \[16, 3, 3, 3\]"),
        (infinite, "features.0.0.weight has a value that is not finite"),
        (negative, "features.0.1.running_var has a negative variance"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, theirs: nn.Module, spoil: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    state = dict(theirs.state_dict())
    spoil(state)
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(WeightsDoNotFit, match=message):
        load_pretrained(predictor().backbone, tmp_path / "weights.safetensors")


def test_another_width_does_not_fit(tmp_path: Path, theirs: nn.Module) -> None:
    save_file(dict(theirs.state_dict()), tmp_path / "weights.safetensors")
    with pytest.raises(WeightsDoNotFit, match="has shape"):
        load_pretrained(predictor(width_multiplier=0.5).backbone, tmp_path / "weights.safetensors")


@pytest.mark.parametrize("data", [b"", b"no weights", b"\x80\x04."])
def test_only_safetensors_are_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "weights").write_bytes(data)
    with pytest.raises(WeightsDoNotFit, match="not readable safetensors"):
        load_pretrained(predictor().backbone, tmp_path / "weights")
