"""Pretrained weights: torchvision's state dict as safetensors is the backbone's start; the classifier is ignored."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from worker.cbm.backbones import CLASSIFIERS
from worker.cbm.weights import WeightsDoNotFit

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]{1,100}")


def load_pretrained(backbone: nn.Module, path: Path) -> None:
    """Set the backbone's weights and statistics to the file's.

    Raises:
        WeightsDoNotFit: not safetensors; or a tensor is missing, does not belong to the backbone, or has another shape,
            another type or a value that is not finite. The message has its name.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 (not a dictionary)
                if not name.startswith(CLASSIFIERS)
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsDoNotFit("the pretrained file is not readable safetensors") from error
    expected = backbone.state_dict()
    if missing := sorted(expected.keys() - tensors.keys()):
        raise WeightsDoNotFit(f"pretrained weights: {len(missing)} tensors are missing, the first is {missing[0]}")
    if surplus := sorted(tensors.keys() - expected.keys()):
        first = f", the first is {surplus[0]}" if _PLAIN_NAME.fullmatch(surplus[0]) else ""
        raise WeightsDoNotFit(f"pretrained weights: {len(surplus)} tensors do not belong to the backbone{first}")
    for name, value in expected.items():
        _require_like(name, tensors[name], value)
    backbone.load_state_dict(tensors)


def _require_like(name: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape:
        shapes = f"has shape {list(found.shape)}, expected {list(expected.shape)}"
        raise WeightsDoNotFit(f"pretrained weights: {name} {shapes}")
    if found.is_floating_point() != expected.is_floating_point():
        raise WeightsDoNotFit(f"pretrained weights: {name} has type {found.dtype}, expected {expected.dtype}")
    held = found.to(expected.dtype)
    if held.is_floating_point() and not bool(torch.isfinite(held).all()):
        raise WeightsDoNotFit(f"pretrained weights: {name} has a value that is not finite")
    if name.endswith(".running_var") and bool((held < 0).any()):
        raise WeightsDoNotFit(f"pretrained weights: {name} has a negative variance")
