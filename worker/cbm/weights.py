"""A model's weights as one safetensors file: ``g.…`` is the concept predictor's state, ``f.…`` the label predictor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.cbm.label_predictor import LabelPredictor

_G, _F = "g.", "f."


class WeightsDoNotFit(ValueError):
    """The file is not a model of the expected architecture, concepts and classes; the message says where."""


def save_weights(model: ConceptPredictor, label_predictor: LabelPredictor) -> bytes:
    """The file's bytes; equal models have equal bytes, so their digests are equal too."""
    tensors = {_G + name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    tensors[_F + "weight"] = label_predictor.weight.detach().cpu().contiguous()
    tensors[_F + "bias"] = label_predictor.bias.detach().cpu().contiguous()
    return bytes(save(tensors, metadata={"format": "modelmend.weights.1"}))


def load_weights(
    path: Path,
    architecture: Mapping[str, Any],
    num_concepts: int,
    num_classes: int,
    device: torch.device | str,
    *,
    label_predictor_required: bool = True,
) -> tuple[ConceptPredictor, LabelPredictor | None]:
    """The concept predictor in eval mode and the label predictor, on ``device``.

    Args:
        label_predictor_required: whether a file without ``f.…`` is refused; else None is returned for it.

    Raises:
        WeightsDoNotFit: not safetensors, a tensor too many or too few, or one of another shape, not finite, or with a
            negative variance.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise WeightsDoNotFit("the file is not readable safetensors") from error
    model = build_concept_predictor(architecture, num_concepts)
    expected = {_G + name: value for name, value in model.state_dict().items()}
    label = {
        _F + "weight": torch.zeros(num_classes, num_concepts, dtype=torch.float64),
        _F + "bias": torch.zeros(num_classes, dtype=torch.float64),
    }
    has_label = any(name.startswith(_F) for name in tensors)
    if has_label or label_predictor_required:
        expected |= label
    _require_fit(tensors, expected)
    model.load_state_dict({name: tensors[_G + name] for name in model.state_dict()})
    model.to(device).eval()
    if not has_label:
        return model, None
    weight, bias = (tensors[_F + name].to(device, torch.float64) for name in ("weight", "bias"))
    return model, LabelPredictor(weight, bias)


def _require_fit(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if missing := sorted(expected.keys() - tensors.keys()):
        raise WeightsDoNotFit(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    if surplus := sorted(tensors.keys() - expected.keys()):
        # Names come from the file, so they are counted and not repeated.
        raise WeightsDoNotFit(f"{len(surplus)} tensors do not belong to this architecture")
    for name, value in expected.items():
        found = tensors[name]
        if found.shape != value.shape:
            raise WeightsDoNotFit(f"{name} has shape {list(found.shape)}, expected {list(value.shape)}")
        if found.is_floating_point() != value.is_floating_point():
            raise WeightsDoNotFit(f"{name} has type {found.dtype}, expected {value.dtype}")
        # Judged as what the model will hold: a double may overflow there, and 8-bit floats know no isfinite.
        held = found.to(value.dtype)
        if held.is_floating_point() and not torch.isfinite(held).all():
            raise WeightsDoNotFit(f"{name} has a value that is not finite in {value.dtype}")
        if name.endswith(".running_var") and (held < 0).any():
            raise WeightsDoNotFit(f"{name} has a negative variance")
