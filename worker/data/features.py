"""Penultimate features of rows under a frozen backbone, computed once per process and kept within a memory budget."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from app.artifacts import ArtifactStore

BATCH = 64
"""Rows of one forward pass; the last pass is filled up, so that a row's features do not depend on its company."""

Key = tuple[str, Path]  # digest of the backbone, image file


class FeatureCache:
    """Features ``float32 [d]``, least recently used first out.

    Args:
        budget: bytes to keep.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._size = 0
        self._features: OrderedDict[Key, Tensor] = OrderedDict()

    def read(
        self,
        backbone: str,
        store: ArtifactStore,
        dataset_id: str,
        sample_ids: Sequence[int],
        compute: Callable[[Sequence[int]], Tensor],
    ) -> Tensor:
        """Features of the given rows ``[n, d]``, on the processor.

        Args:
            backbone: its :func:`digest_of`.
            compute: features of rows that are not here, in their order.
        """
        keys = [(backbone, store.image_path(dataset_id, sample_id)) for sample_id in sample_ids]
        missing = [i for i, key in enumerate(keys) if key not in self._features]
        found = {keys[i]: self._features[keys[i]] for i in range(len(keys)) if keys[i] in self._features}
        for key in found:
            self._features.move_to_end(key)
        if missing:
            computed = compute([sample_ids[i] for i in missing]).cpu()
            for i, features in zip(missing, computed, strict=True):
                found[keys[i]] = features.clone()  # a view would keep the whole batch alive
                self._keep(keys[i], found[keys[i]])
        return torch.stack([found[key] for key in keys])

    def forget(self, store: ArtifactStore, dataset_id: str, sample_ids: Iterable[int]) -> None:
        """Drop the features of the given rows under every backbone."""
        gone = {store.image_path(dataset_id, sample_id) for sample_id in sample_ids}
        for key in [key for key in self._features if key[1] in gone]:
            self._size -= self._features.pop(key).nbytes

    def _keep(self, key: Key, features: Tensor) -> None:
        self._features[key] = features
        self._size += features.nbytes
        while self._size > self._budget and len(self._features) > 1:
            self._size -= self._features.popitem(last=False)[1].nbytes


def digest_of(backbone: nn.Module, image_size: int) -> str:
    """SHA-256 of what features depend on: names, types, shapes and values of the backbone's state, and pixels."""
    digest = hashlib.sha256(str(image_size).encode())
    for name, value in sorted(backbone.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def features_under(backbone: nn.Module, images: Tensor) -> Tensor:
    """Features ``[n, d]`` in eval mode and in the backbone's own type."""
    backbone.eval()
    parts = []
    for chunk in torch.split(images, BATCH):
        full = torch.cat([chunk, chunk.new_zeros(BATCH - len(chunk), *chunk.shape[1:])])
        parts.append(backbone(full.contiguous(memory_format=torch.channels_last)).flatten(1)[: len(chunk)])
    return torch.cat(parts)
