"""Weights as files: there and back, equal bytes, and every refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.weights import WeightsDoNotFit, load_weights, save_weights

ARCHITECTURE: dict[str, Any] = {"name": "small_conv", "width": 8, "image_size": 8, "channels": 1}
K, CLASSES = 3, 4


def model_of(seed: int = 0) -> tuple[ConceptPredictor, LabelPredictor]:
    model = build_concept_predictor(ARCHITECTURE, K, seed=seed)
    with torch.no_grad():
        model(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))  # statistics are no defaults
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, K, generator=generator, dtype=torch.float64)
    return model, LabelPredictor(weight, torch.randn(CLASSES, generator=generator, dtype=torch.float64))


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def loaded(path: Path, *, required: bool = True) -> tuple[ConceptPredictor, LabelPredictor | None]:
    return load_weights(path, ARCHITECTURE, K, CLASSES, "cpu", label_predictor_required=required)


def test_there_and_back(tmp_path: Path) -> None:
    model, label = model_of()
    again, label_again = loaded(written(tmp_path / "w", save_weights(model, label)))
    assert label_again is not None
    assert torch.equal(label_again.weight, label.weight)
    assert torch.equal(label_again.bias, label.bias)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert not again.training


def test_equal_models_have_equal_bytes(tmp_path: Path) -> None:
    data = save_weights(*model_of())
    assert data == save_weights(*model_of())
    again, label = loaded(written(tmp_path / "w", data))
    assert label is not None
    assert save_weights(again, label) == data
    assert data != save_weights(*model_of(1))


Change = Callable[[dict[str, Tensor]], None]


def without(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def with_value(name: str, value: Tensor) -> Change:
    return lambda tensors: tensors.update({name: value})


def spoiled(name: str, number: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[-1] = number

    return change


def retyped(name: str, dtype: torch.dtype, number: float) -> Change:
    return lambda tensors: tensors.update({name: torch.full(tensors[name].shape, number, dtype=dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("g.head.bias"), "1 tensors are missing, the first is g.head.bias"),
        (without("g.backbone.1.running_var"), "the first is g.backbone.1.running_var"),
        (without("f.bias"), "1 tensors are missing, the first is f.bias"),
        (with_value("g.secret", torch.zeros(1)), "1 tensors do not belong"),
        (with_value("unprefixed", torch.zeros(1)), "1 tensors do not belong"),
        (with_value("f.scale", torch.zeros(1)), "1 tensors do not belong"),
        (with_value("g.head.bias", torch.zeros(K + 1)), r"g.head.bias has shape \[4\], expected \[3\]"),
        (with_value("g.head.weight", torch.zeros(64, K)), r"g.head.weight has shape \[64, 3\], expected \[3, 64\]"),
        (with_value("f.weight", torch.zeros(CLASSES - 1, K)), r"f.weight has shape \[3, 3\], expected \[4, 3\]"),
        (with_value("g.head.bias", torch.zeros(K, dtype=torch.int64)), "g.head.bias has type torch.int64"),
        (with_value("g.backbone.1.num_batches_tracked", torch.tensor(1.0)), "num_batches_tracked has type"),
        (spoiled("g.head.weight", float("nan")), "g.head.weight has a value that is not finite"),
        (spoiled("g.backbone.1.running_mean", float("inf")), "running_mean has a value that is not finite"),
        (spoiled("f.bias", float("-inf")), "f.bias has a value that is not finite"),
        (retyped("g.head.bias", torch.float64, 1e300), "g.head.bias has a value that is not finite in torch.float32"),
        (retyped("g.head.bias", torch.float8_e4m3fn, float("nan")), "g.head.bias has a value that is not finite"),
        (spoiled("g.backbone.1.running_var", -1.0), "g.backbone.1.running_var has a negative variance"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path, change: Change, message: str) -> None:
    tensors = load(save_weights(*model_of()))
    change(tensors)
    with pytest.raises(WeightsDoNotFit, match=message) as refusal:
        loaded(written(tmp_path / "w", save(tensors)), required=False)
    assert "secret" not in str(refusal.value)


def test_a_file_without_a_label_predictor_is_refused_unless_allowed(tmp_path: Path) -> None:
    model, label = model_of()
    tensors = {name: value for name, value in load(save_weights(model, label)).items() if name.startswith("g.")}
    path = written(tmp_path / "w", save(tensors))
    with pytest.raises(WeightsDoNotFit, match=r"2 tensors are missing, the first is f\.bias"):
        loaded(path)
    again, nothing = loaded(path, required=False)
    assert nothing is None
    assert torch.equal(again.head.weight, model.head.weight)


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_cut_files_are_refused(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "w", save_weights(*model_of())[:length])
    with pytest.raises(WeightsDoNotFit, match="not readable safetensors"):
        loaded(path)


@pytest.mark.parametrize("data", [b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100), b"\xff" * 64, b"{}" * 32])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(WeightsDoNotFit, match="not readable safetensors"):
        loaded(written(tmp_path / "w", data))


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsDoNotFit, match="not readable safetensors"):
        loaded(tmp_path / "absent")


def test_other_precisions_are_taken_over(tmp_path: Path) -> None:
    tensors = load(save_weights(*model_of()))
    tensors["g.head.bias"] = tensors["g.head.bias"].double()
    tensors["f.weight"] = tensors["f.weight"].float()
    model, label = loaded(written(tmp_path / "w", save(tensors)))
    assert label is not None
    assert model.head.bias.dtype == torch.float32
    assert label.weight.dtype == torch.float64
