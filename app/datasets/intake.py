"""Looking at the images that a manifest names: each file once, several at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app.datasets.archives import ImageSource
from app.datasets.images import ImageLimits, ImageRefused, check_image
from app.datasets.manifest import Manifest
from app.datasets.report import ManifestErrorCode, Report
from app.datasets.schemas import FIXED_COLUMNS, DatasetDefinition
from app.datasets.votes import Votes

_IMAGE_POSITION = FIXED_COLUMNS.index("image")
_BATCH_ROWS = 2000
_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class ImageFacts:
    """Of an image that was found good: SHA-256 in hex, and encoded size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Submission:
    """What a client sent to be registered; ``votes`` (one row per row of the manifest) where classes vote."""

    definition: DatasetDefinition
    manifest: Manifest
    images: ImageSource
    votes: Votes | None = None


def check_images(manifest: Manifest, source: ImageSource, limits: ImageLimits, report: Report) -> dict[str, ImageFacts]:
    """Decodes every image that a row names; rows without a good image are reported. Returns the good ones by name."""
    names = {name for name in manifest.images if name in source}
    facts: dict[str, ImageFacts] = {}
    refused: dict[str, ManifestErrorCode] = {}

    def check(name: str) -> tuple[str, ImageFacts | ManifestErrorCode]:
        try:
            data = source.read(name)
            check_image(data, limits)
        except ImageRefused as refusal:
            return name, refusal.code
        return name, ImageFacts(hashlib.sha256(data).hexdigest(), len(data))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, found in pool.map(check, names):
            if isinstance(found, ImageFacts):
                facts[name] = found
            else:
                refused[name] = found
    for row, name in zip(manifest.numbers, manifest.images, strict=True):
        if name and name not in facts:
            code = refused.get(name, ManifestErrorCode.MISSING_IMAGE)
            report.add(code, row=row, column="image", position=_IMAGE_POSITION)
    return facts


def image_batches(
    ids: Iterable[int], names: Iterable[str], facts: Mapping[str, ImageFacts]
) -> Iterator[dict[int, str]]:
    """Names of images by id of the row, in runs whose images fit into memory together."""
    batch: dict[int, str] = {}
    held = 0
    for sample_id, name in zip(ids, names, strict=True):
        size = facts[name].size
        if batch and (len(batch) == _BATCH_ROWS or held + size > _BATCH_BYTES):
            yield batch
            batch, held = {}, 0
        batch[sample_id] = name
        held += size
    if batch:
        yield batch
