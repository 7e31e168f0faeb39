"""Concept predictors ``g``: a backbone and a linear head, images ``[B, C, H, W]`` → concept logits ``[B, k]``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet, conv3x3

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
        architecture: ``{"name": "small_conv", "width", "image_size", "channels"}`` or
            ``{"name": "resnet18", "stem", "width", "image_size"}``; sizes are pixels, widths are channels.
        num_concepts: ``k``.
        seed: of the initial weights; the global generator is left as it was.

    Raises:
        ValueError: the name is unknown.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match architecture["name"]:
            case "small_conv":
                backbone, num_features = _small_conv(architecture["width"], architecture["channels"])
            case "resnet18":
                backbone, num_features = _resnet18(architecture["width"], architecture["stem"])
            case name:
                raise ValueError(f"unknown architecture {name!r}")
        return ConceptPredictor(backbone, num_features, num_concepts)


def _small_conv(width: int, channels: int) -> tuple[nn.Module, int]:
    """Three 3×3 convolutions with BatchNorm: about 56,000 parameters at width 32."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        # BatchNorm has the shift, so a bias before it would be a direction without effect.
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [
        *block(channels, width),
        *block(width, 2 * width),
        nn.MaxPool2d(2),
        *block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers), 8 * width


class _ResNet18(ResNet):  # type: ignore[misc]  # torchvision has no types
    """torchvision's ResNet-18 with a choice of stem and base width, and no classifier."""

    def __init__(self, width: int, stem: str) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=1)
        if width != 64:  # torchvision scales only bottleneck blocks
            self.inplanes = width
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.layer1 = self._make_layer(BasicBlock, width, 2)
            self.layer2 = self._make_layer(BasicBlock, 2 * width, 2, stride=2)
            self.layer3 = self._make_layer(BasicBlock, 4 * width, 2, stride=2)
            self.layer4 = self._make_layer(BasicBlock, 8 * width, 2, stride=2)
        if stem == "small":  # for inputs of about 64 pixels and less
            self.conv1 = conv3x3(3, width)
            self.maxpool = nn.Identity()
        self.fc = nn.Identity()
        if width != 64 or stem == "small":
            for module in self.modules():  # as torchvision initialises the layers that were replaced
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _resnet18(width: int, stem: str) -> tuple[nn.Module, int]:
    return _ResNet18(width, stem), 8 * width


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
