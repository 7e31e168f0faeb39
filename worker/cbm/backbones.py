"""Backbones: images ``[B, C, H, W]`` in [−1, 1] → flat features ``[B, d]``.

All but ``small_conv`` are torchvision's, without their classifiers, in its order of parameters, so that its weights fit
by name. None has anything random in train mode: dropout is only in the classifiers, and EfficientNet's stochastic depth
is off, as edits recompute BatchNorm's statistics in train mode and two equal edits must end equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torchvision.models import efficientnet_b0, mobilenet_v3_large, mobilenet_v3_small
from torchvision.models.efficientnet import EfficientNet, _efficientnet_conf
from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet, conv3x3

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of torchvision's pretrained weights, for pixels in [0, 1]."""

CLASSIFIERS = ("fc.", "classifier.")
"""Prefixes of what torchvision's models have behind the features."""


_SCALE = [0.5 / std for std in IMAGENET_STD]
_SHIFT = [(0.5 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]


def imagenet_normalised(images: Tensor) -> Tensor:
    """Images in [−1, 1] as models pretrained on ImageNet want them: ``((x + 1)/2 − mean)/std`` per channel."""
    scale, shift = (images.new_tensor(values).view(3, 1, 1) for values in (_SCALE, _SHIFT))
    return images * scale + shift


def build_backbone(architecture: Mapping[str, Any]) -> tuple[nn.Module, int]:
    """A backbone with fresh weights from the global generator, and the length ``d`` of its features.

    Raises:
        ValueError: the name is unknown.
    """
    name = architecture["name"]
    if name == "small_conv":
        return _small_conv(architecture["width"], architecture["channels"])
    if name not in _BUILDERS:
        raise ValueError(f"unknown architecture {name!r}")
    backbone, num_features = _BUILDERS[name](architecture)
    if architecture.get("normalisation", "symmetric") == "imagenet":
        backbone.register_forward_pre_hook(_normalise)
    return backbone, num_features


def _normalise(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    """Part of the model, not of how images are read: whoever takes the weights feeds every model alike.

    A hook and no layer, as it has no state and the names of the backbone's weights stay torchvision's.
    """
    (images,) = args
    return (imagenet_normalised(images),)


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


class _ResNet(ResNet):  # type: ignore[misc]  # torchvision has no types
    """torchvision's ResNet with a choice of stem and base width, and no classifier."""

    def __init__(self, block: type[nn.Module], layers: list[int], width: int, stem: str) -> None:
        super().__init__(block, layers, num_classes=1)
        if width != 64:  # torchvision scales only bottleneck blocks
            self.inplanes = width
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.layer1 = self._make_layer(block, width, layers[0])
            self.layer2 = self._make_layer(block, 2 * width, layers[1], stride=2)
            self.layer3 = self._make_layer(block, 4 * width, layers[2], stride=2)
            self.layer4 = self._make_layer(block, 8 * width, layers[3], stride=2)
        if stem == "small":  # for inputs of about 64 pixels and less
            self.conv1 = conv3x3(3, width)
            self.maxpool = nn.Identity()
        self.fc = nn.Identity()
        if width != 64 or stem == "small":
            for module in self.modules():  # as torchvision initialises the layers that were replaced
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _resnet(block: Any, layers: list[int]) -> Callable[[Mapping[str, Any]], tuple[nn.Module, int]]:
    def build(architecture: Mapping[str, Any]) -> tuple[nn.Module, int]:
        width = architecture["width"]
        return _ResNet(block, layers, width, architecture["stem"]), 8 * width * block.expansion

    return build


def _mobilenet_v3(size: str) -> Callable[[Mapping[str, Any]], tuple[nn.Module, int]]:
    def build(architecture: Mapping[str, Any]) -> tuple[nn.Module, int]:
        multiplier = architecture["width_multiplier"]
        if multiplier == 1.0:
            net = {"small": mobilenet_v3_small, "large": mobilenet_v3_large}[size]()
        else:
            net = MobileNetV3(*_mobilenet_v3_conf(f"mobilenet_v3_{size}", width_mult=multiplier))
        return _without_classifier(net, net.classifier[0].in_features, architecture["stem"])

    return build


def _efficientnet_b0(architecture: Mapping[str, Any]) -> tuple[nn.Module, int]:
    multiplier = architecture["width_multiplier"]
    if multiplier == 1.0:
        net = efficientnet_b0(stochastic_depth_prob=0.0)
    else:
        settings, _ = _efficientnet_conf("efficientnet_b0", width_mult=multiplier, depth_mult=1.0)
        net = EfficientNet(settings, dropout=0.0, stochastic_depth_prob=0.0)
    return _without_classifier(net, net.classifier[1].in_features, architecture["stem"])


def _without_classifier(net: nn.Module, num_features: int, stem: str) -> tuple[nn.Module, int]:
    net.classifier = nn.Identity()
    if stem == "small":  # the first convolution keeps the image's size; its weights are the same
        features: Any = net.features
        features[0][0].stride = (1, 1)
    return net, int(num_features)


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[nn.Module, int]]] = {
    "resnet18": _resnet(BasicBlock, [2, 2, 2, 2]),
    "resnet34": _resnet(BasicBlock, [3, 4, 6, 3]),
    "resnet50": _resnet(Bottleneck, [3, 4, 6, 3]),
    "mobilenet_v3_small": _mobilenet_v3("small"),
    "mobilenet_v3_large": _mobilenet_v3("large"),
    "efficientnet_b0": _efficientnet_b0,
}
