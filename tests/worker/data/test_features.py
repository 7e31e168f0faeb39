"""Features under a frozen backbone: computed once, within a budget, independent of their company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from app.artifacts import LocalArtifactStore
from tests.worker.threads import one_thread
from worker.cbm.concept_predictor import build_concept_predictor
from worker.data.features import BATCH, FeatureCache, digest_of, features_under

__all__ = ["one_thread"]

SMALL = {"name": "small_conv", "width": 8, "image_size": 8, "channels": 1}


class Counting:
    """Features that tell their row; keeps what was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, ids: Sequence[int]) -> Tensor:
        self.asked += ids
        return torch.tensor(ids, dtype=torch.float32)[:, None].expand(-1, 4)


def test_rows_are_computed_once_per_backbone_and_forgotten_under_all(tmp_path: Path) -> None:
    store, cache, compute = LocalArtifactStore(tmp_path), FeatureCache(1 << 20), Counting()
    assert cache.read("a", store, "set", [3, 1, 2], compute)[:, 0].tolist() == [3, 1, 2]
    assert cache.read("a", store, "set", [2, 4, 3], compute)[:, 0].tolist() == [2, 4, 3]
    assert compute.asked == [3, 1, 2, 4]
    cache.read("b", store, "set", [1], compute)
    cache.read("a", store, "other", [1], compute)
    assert compute.asked == [3, 1, 2, 4, 1, 1]
    cache.forget(store, "set", [1])
    for backbone, dataset in (("a", "set"), ("b", "set"), ("a", "other")):
        cache.read(backbone, store, dataset, [1, 1], compute)
    assert compute.asked[6:] == [1, 1, 1, 1]


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store, compute = LocalArtifactStore(tmp_path), Counting()
    cache = FeatureCache(2 * 4 * 4)  # two rows of four single-precision numbers
    for row in (1, 2, 1, 3, 1, 2):
        cache.read("a", store, "set", [row], compute)
    assert compute.asked == [1, 2, 3, 2]
    # More rows than fit are still all returned.
    assert cache.read("a", store, "set", [5, 6, 7], compute)[:, 0].tolist() == [5, 6, 7]


def test_a_rows_features_do_not_depend_on_its_company() -> None:
    backbone = build_concept_predictor(SMALL, 2).backbone
    images = torch.randn(BATCH + 6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    whole = features_under(backbone, images)
    assert torch.equal(features_under(backbone, images[:BATCH]), whole[:BATCH])
    assert torch.equal(features_under(backbone, images[BATCH:]), whole[BATCH:])
    torch.testing.assert_close(whole, backbone(images), rtol=1e-5, atol=1e-6)


def test_the_digest_is_of_weights_statistics_and_pixels() -> None:
    backbone = build_concept_predictor(SMALL, 2).backbone
    first = digest_of(backbone, 8)
    assert digest_of(build_concept_predictor(SMALL, 5).backbone, 8) == first
    assert digest_of(backbone, 9) != first
    assert digest_of(build_concept_predictor(SMALL, 2, seed=1).backbone, 8) != first
    backbone.get_buffer("1.running_mean").add_(1)
    assert digest_of(backbone, 8) != first
