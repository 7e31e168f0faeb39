"""A public data set on disk as tensors, by the project's own importers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from app.datasets.importers import ImportedRow, ImportPlan, SourceProblem
from app.datasets.importers.layouts import read_layout
from app.datasets.snapshots import SPLITS
from papers.protocols import Protocol
from worker.data.images import decode, normalised
from worker.data.tensors import LabelledImages

CHUNK = 512
"""Images decoded before they go to the device."""


@dataclass(frozen=True)
class PaperData:
    """Three disjoint splits; row ids are positions in the importer's rows."""

    title: str
    concepts: tuple[str, ...]
    classes: tuple[str, ...]
    train: LabelledImages
    calibration: LabelledImages
    test: LabelledImages


def plan_of(protocol: Protocol, directory: Path) -> ImportPlan:
    """What the importer finds.

    Raises:
        SourceProblem: files are missing or not as expected, or a split has no rows.
    """
    plan = read_layout(protocol.layout, directory, protocol.choices)
    if empty := [split for split in SPLITS if not plan.counts[split]]:
        raise SourceProblem(
            f"The protocol needs rows in every split of {directory}:", [f"There are none in {name}." for name in empty]
        )
    return plan


def load(
    plan: ImportPlan,
    image_size: int,
    *,
    limit: int | None,
    device: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PaperData:
    """Every image decoded, in memory on the device.

    Args:
        limit: rows of each split at most, drawn with a fixed seed; all if None.
        progress: called with (images done, images).

    Raises:
        SourceProblem: an image cannot be read.
    """
    chosen = {split: _chosen([i for i, row in enumerate(plan.rows) if row.split == split], limit) for split in SPLITS}
    total = sum(len(positions) for positions in chosen.values())
    done = 0

    def rows(split: str) -> LabelledImages:
        nonlocal done
        shape = len(chosen[split]), 3, image_size, image_size
        images = torch.empty(shape, device=device, memory_format=torch.channels_last)
        filled = 0
        for pixels in _decoded(plan, [plan.rows[i] for i in chosen[split]], image_size):
            images[filled : filled + len(pixels)] = normalised(pixels.to(device))
            filled, done = filled + len(pixels), done + len(pixels)
            progress(done, total)
        index = {name: number for number, name in enumerate(plan.classes)}
        labelled = [plan.rows[i] for i in chosen[split]]
        return LabelledImages(
            images,
            torch.tensor([list(row.labels) for row in labelled], dtype=torch.int64).to(device),
            torch.tensor([index[row.class_name] for row in labelled]).to(device),
            torch.tensor(chosen[split]).to(device),
        )

    return PaperData(plan.title, plan.concepts, plan.classes, *(rows(split) for split in SPLITS))


def gibibytes(plan: ImportPlan, image_size: int, limit: int | None) -> float:
    """Of memory that the images take."""
    rows = sum(min(count, limit or count) for count in plan.counts.values())
    return rows * 3 * image_size**2 * 4 / 2**30


def _chosen(positions: list[int], limit: int | None) -> list[int]:
    if limit is None or len(positions) <= limit:
        return positions
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(0))[:limit]
    return sorted(positions[i] for i in order.tolist())


def _decoded(plan: ImportPlan, rows: Sequence[ImportedRow], size: int) -> Iterator[Tensor]:
    def one(row: ImportedRow) -> Tensor:
        try:
            return decode(plan.root / row.image, size, 3)
        except OSError as error:
            raise SourceProblem("An image cannot be read:", [f"{plan.root / row.image}: {error}"]) from error

    with ThreadPoolExecutor() as pool:
        waiting = iter(rows)
        while part := list(islice(waiting, CHUNK)):
            yield torch.stack(list(pool.map(one, part)))
