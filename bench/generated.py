"""Generated images of birds that do not exist: a data set of CUB-200-2011's shape, of any size.

CUB as concept bottleneck models use it has 200 classes and 112 binary concepts in 28 groups (the bird's parts),
labelled by class: every image of a class carries the class's concepts, whether they can be seen in it or not. So here.
Each class shows one of four textures in every group's cell of a jittered grid. An image's own noise is what makes the
labels hard: a part may be hidden, or show another texture than the class's, contrast varies by image and by part, and
clutter and pixel noise lie over everything. A predictor can get such labels right only by knowing the rest of the
class, or by remembering the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.data.tensors import LabelledImages

TEXTURES = 4
"""Concepts per group, of which a class has exactly one."""


@dataclass(frozen=True)
class Shape:
    """How many of everything, and how hard.

    Attributes:
        classes, groups: of the data set; it has ``4 · groups`` concepts.
        image_size: pixels to a side, three channels.
        train, calibration, test: rows of each split.
        hidden: share of parts that are not to be seen.
        other: share of parts that show another texture than the class's.
        noise: standard deviation of pixel noise at 32 pixels; textures have about unit amplitude.
        classes_apart: groups in which any two classes differ at least.
    """

    classes: int
    groups: int
    image_size: int
    train: int
    calibration: int
    test: int
    hidden: float = 0.1
    other: float = 0.05
    noise: float = 0.5
    classes_apart: int = 2

    @property
    def concepts(self) -> int:
        return TEXTURES * self.groups


@dataclass(frozen=True)
class Generated:
    """Three disjoint splits; row ids are unique across them."""

    train: LabelledImages
    calibration: LabelledImages
    test: LabelledImages


def generate(shape: Shape, seed: int, device: torch.device | str = "cpu") -> Generated:
    """One draw of classes and images; the same on every device up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    attributes = _distinct_classes(shape, generator)
    first, splits = 0, []
    for rows in (shape.train, shape.calibration, shape.test):
        splits.append(_rows(shape, attributes, rows, first, generator, device))
        first += rows
    return Generated(*splits)


def _distinct_classes(shape: Shape, generator: torch.Generator) -> Tensor:
    """The texture of each class in each group ``[classes, groups]``."""
    found: list[Tensor] = []
    for _ in range(1000 * shape.classes):
        candidate = torch.randint(TEXTURES, (shape.groups,), generator=generator)
        if all(int((candidate != other).sum()) >= shape.classes_apart for other in found):
            found.append(candidate)
            if len(found) == shape.classes:
                return torch.stack(found)
    raise ValueError(f"{shape.groups} groups do not tell {shape.classes} classes apart")


def _rows(
    shape: Shape, attributes: Tensor, n: int, first_id: int, generator: torch.Generator, device: torch.device | str
) -> LabelledImages:
    classes = torch.arange(n) % shape.classes
    classes = classes[torch.randperm(n, generator=generator)]
    own = attributes[classes]
    chunk = max(1, 2**21 // shape.image_size**2)
    images = torch.cat([_rendered(shape, part, generator, device) for part in torch.split(own, chunk)])
    images = images.to(memory_format=torch.channels_last)  # convolutions run twice as fast so
    concepts = torch.nn.functional.one_hot(own, TEXTURES).flatten(1)
    return LabelledImages(
        images, concepts.to(device), classes.to(device), torch.arange(first_id, first_id + n).to(device)
    )


def _rendered(shape: Shape, own: Tensor, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """Images ``[B, 3, S, S]`` of rows whose classes have the textures ``own`` ``[B, groups]``."""
    n, size = len(own), shape.image_size

    def uniform(*shape_: int) -> Tensor:
        return torch.rand(*shape_, generator=generator)

    shown = torch.where(
        uniform(n, shape.groups) < shape.other, (own + 1 + (3 * uniform(n, shape.groups)).long()) % 4, own
    )
    contrast = (
        0.4 * torch.randn(n, 1, generator=generator) + 0.4 * torch.randn(n, shape.groups, generator=generator)
    ).exp()
    contrast *= uniform(n, shape.groups) >= shape.hidden
    shift = 0.04 * (2 * uniform(n, 1, 2) - 1) + 0.02 * (2 * uniform(n, shape.groups, 2) - 1)
    phase = 2 * torch.pi * uniform(n, shape.groups)
    pixel_noise = shape.noise * (size / 32) * torch.randn(n, 3, size, size, generator=generator)
    clutter = torch.randn(n, 3, 4, 4, generator=generator)

    columns = int(shape.groups**0.5 + 0.999)
    lines = -(-shape.groups // columns)
    at = torch.arange(shape.groups)
    centres = torch.stack([(at // columns + 0.5) / lines, (at % columns + 0.5) / columns], dim=1)
    hue = 2 * torch.pi * at / min(shape.groups, 7)
    colours = torch.stack([torch.cos(hue), torch.cos(hue - 2.1), torch.cos(hue + 2.1)], dim=1)

    place = {"device": device, "dtype": torch.float32}
    axis = (torch.arange(size, **place) + 0.5) / size  # type: ignore[call-overload]
    images = pixel_noise.to(device) + 0.5 * torch.nn.functional.interpolate(
        clutter.to(device), (size, size), mode="bilinear", align_corners=False
    )
    cell = 1 / max(lines, columns)
    for group in range(shape.groups):
        centre = (centres[group] + shift[:, group]).to(**place)  # type: ignore[call-overload]
        dy = (axis[None, :] - centre[:, :1])[:, :, None]
        dx = (axis[None, :] - centre[:, 1:])[:, None, :]
        angle = (torch.pi / TEXTURES * shown[:, group]).to(**place)[:, None, None]  # type: ignore[call-overload]
        wave = torch.cos(
            2 * torch.pi * 2.2 / cell * (dy * angle.sin() + dx * angle.cos())
            + phase[:, group].to(device)[:, None, None]
        )
        window = torch.exp(-(dy.square() + dx.square()) / (2 * (0.3 * cell) ** 2))
        part = contrast[:, group].to(device)[:, None, None] * window * wave
        images += part[:, None] * colours[group].to(device)[None, :, None, None]
    return images
