"""Stored images as tensors, decoded once per process and kept within a memory budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.artifacts import ArtifactStore
from app.datasets.snapshots import Snapshot
from worker.data.tensors import LabelledImages

Key = tuple[Path, int, int]  # file, size, channels


class ImageCache:
    """Decoded images, ``uint8 [C, H, W]``, least recently used first out.

    Args:
        budget: bytes of pixels to keep.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._size = 0
        self._images: OrderedDict[Key, Tensor] = OrderedDict()

    def read(
        self, store: ArtifactStore, dataset_id: str, sample_ids: Iterable[int], size: int, channels: int
    ) -> Tensor:
        """The images of the given rows, ``uint8 [n, channels, size, size]``."""
        images = [self._one((store.image_path(dataset_id, sample_id), size, channels)) for sample_id in sample_ids]
        return torch.stack(images) if images else torch.empty(0, channels, size, size, dtype=torch.uint8)

    def forget(self, store: ArtifactStore, dataset_id: str, sample_ids: Iterable[int]) -> None:
        """Drop every decoded copy of the given rows."""
        gone = {store.image_path(dataset_id, sample_id) for sample_id in sample_ids}
        for key in [key for key in self._images if key[0] in gone]:
            self._size -= self._images.pop(key).numel()

    def _one(self, key: Key) -> Tensor:
        if key in self._images:
            self._images.move_to_end(key)
            return self._images[key]
        image = decode(*key)
        self._images[key] = image
        self._size += image.numel()
        while self._size > self._budget and len(self._images) > 1:
            self._size -= self._images.popitem(last=False)[1].numel()
        return image


def decode(path: Path, size: int, channels: int) -> Tensor:
    """One image file as ``uint8 [channels, size, size]``; grey for one channel, RGB for three.

    Images were checked when they were registered, so a failure here is a damaged store and raises as it is.
    """
    with Image.open(path) as image:
        pixels = image.convert("L" if channels == 1 else "RGB")
        if pixels.size != (size, size):
            pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        array = np.array(pixels, dtype=np.uint8).reshape(size, size, channels)
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()


def normalised(pixels: Tensor) -> Tensor:
    """``uint8`` pixels as floats in [−1, 1]. The constants are fixed: statistics of the data would remember it."""
    return pixels.to(torch.float32).div_(127.5).sub_(1.0)


def labelled_images(
    snapshot: Snapshot,
    positions: np.ndarray[Any, np.dtype[np.intp]],
    cache: ImageCache,
    store: ArtifactStore,
    dataset_id: str,
    architecture: Mapping[str, Any],
    device: torch.device | str,
) -> LabelledImages:
    """The rows of a snapshot at ``positions``, on ``device``."""
    ids = snapshot.sample_ids[positions]
    size, channels = architecture["image_size"], architecture["channels"]
    pixels = cache.read(store, dataset_id, ids.tolist(), size, channels)
    return LabelledImages(
        images=normalised(pixels.to(device)),
        concepts=torch.from_numpy(snapshot.concepts[positions].astype(np.int64)).to(device),
        classes=torch.from_numpy(snapshot.classes[positions].astype(np.int64)).to(device),
        sample_ids=torch.from_numpy(ids.copy()).to(device),
    )
