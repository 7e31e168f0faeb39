"""Rows of a split as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelledImages:
    """Images ``[n, C, H, W]``, concept labels ``[n, k]`` (0, 1, −1 unknown), classes ``[n]`` and row ids ``[n]``."""

    images: Tensor
    concepts: Tensor
    classes: Tensor
    sample_ids: Tensor

    def __len__(self) -> int:
        return len(self.sample_ids)

    def take(self, rows: Tensor) -> LabelledImages:
        """The rows at the given positions (integer or boolean index)."""
        return LabelledImages(self.images[rows], self.concepts[rows], self.classes[rows], self.sample_ids[rows])

    def to(self, device: torch.device | str) -> LabelledImages:
        """The same rows on another device."""
        return LabelledImages(
            self.images.to(device), self.concepts.to(device), self.classes.to(device), self.sample_ids.to(device)
        )

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and concept labels, ``size`` rows at a time, in order."""
        for start in range(0, len(self), size):
            yield self.images[start : start + size], self.concepts[start : start + size]

    def joined(self, other: LabelledImages) -> LabelledImages:
        """These rows and then the other's."""
        return LabelledImages(
            torch.cat([self.images, other.images]),
            torch.cat([self.concepts, other.concepts]),
            torch.cat([self.classes, other.classes]),
            torch.cat([self.sample_ids, other.sample_ids]),
        )
