"""Concept predictors ``g``: a backbone and a linear head, images ``[B, C, H, W]`` → concept logits ``[B, k]``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from worker.cbm.backbones import build_backbone

HEAD = "head"


class ConceptPredictor(nn.Module):
    """``head(backbone(x))``; ``backbone`` ends in a flat feature vector."""

    def __init__(self, backbone: nn.Module, num_features: int, num_concepts: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(num_features, num_concepts)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))
        return logits


def build_concept_predictor(architecture: Mapping[str, Any], num_concepts: int, *, seed: int = 0) -> ConceptPredictor:
    """A freshly initialised predictor for one of the known architectures.

    Args:
        architecture: ``{"name": "small_conv", "width", "image_size", "channels"}``, or a ResNet's
            ``{"name", "stem", "width", "image_size", "normalisation"}``, or a MobileNetV3's or EfficientNet's, with
            ``width_multiplier`` for ``width``; sizes are pixels, widths are channels.
        num_concepts: ``k``.
        seed: of the initial weights; the global generator is left as it was.

    Raises:
        ValueError: the name is unknown.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone, num_features = build_backbone(architecture)
        return ConceptPredictor(backbone, num_features, num_concepts)


def with_head_rows(model: ConceptPredictor, rows: list[int]) -> ConceptPredictor:
    """A copy of the predictor that keeps only the given concepts, in the given order."""
    result = copy.deepcopy(model)
    if rows == list(range(model.head.out_features)):
        return result
    head = nn.Linear(model.head.in_features, len(rows)).to(model.head.weight)
    with torch.no_grad():
        head.weight.copy_(model.head.weight[rows])
        head.bias.copy_(model.head.bias[rows])
    result.head = head
    return result.eval()
