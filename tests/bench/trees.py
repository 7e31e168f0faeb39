"""Tiny downloads of the four public data sets, with enough of everything for the paper's protocol.

They are those of the importers' tests, with more rows, and images whose colour says the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.datasets.importers.tables import OAI_CONCEPTS
from tests.app.datasets.importers import trees
from tests.app.datasets.importers.trees import (
    Vote,
    celeba_tree,
    cub_images,
    cub_tree,
    derm7pt_tree,
    table,
    write_images,
)

SPECIES = 12
ATTRIBUTES = 6


def cub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve species, as an attribute is a concept when ten species have it."""
    monkeypatch.setattr(trees, "SPECIES", tuple(f"{n + 1:03d}.Bird_{n}" for n in range(SPECIES)))
    monkeypatch.setattr(trees, "CUB_ATTRIBUTES", tuple(f"has_part_{n}::yes" for n in range(ATTRIBUTES)))

    def vote(species: int, number: int, attribute: int) -> Vote:
        return (0, 3) if species in (2 * attribute, 2 * attribute + 1) else (1, 4)

    root = cub_tree(folder, vote)
    painted(root / "images", {path: species for species, path in cub_images()}, SPECIES)
    return folder


def oai(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Persons with two knees each; the grades follow the Kellgren-Lawrence grade, one cell is empty."""
    rng = np.random.default_rng(0)
    grades = [n % 5 for n in range(90)]
    rows = [
        {
            "id": str(9_000_001 + n // 2),
            "image": f"knees/{n}.png",
            "xrkl": str(grade),
            **{name: str(max(0, grade - int(rng.integers(0, 4)))) for name in OAI_CONCEPTS},
        }
        for n, grade in enumerate(grades)
    ]
    rows[0][OAI_CONCEPTS[0]] = ""
    write_images(folder, (row["image"] for row in rows), "PNG")
    painted(folder, {row["image"]: grade for row, grade in zip(rows, grades, strict=True)}, 5)
    table(folder / "labels.csv", rows)
    return folder


def celeba(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fourteen attributes, of which the eight most balanced, that are all the same, make two classes."""
    n = 90
    rng = np.random.default_rng(0)
    classes = np.arange(n) % 2
    others = np.stack([rng.permutation(np.arange(n) % 5 == 0) for _ in range(6)], axis=1)
    labels = np.concatenate([np.repeat(classes[:, None], 8, axis=1), others], axis=1).astype(np.int8)
    parts = ("0" * 5 + "1" * 2 + "2" * 2) * (n // 9)
    names = [f"Attribute_{letter}" for letter in "ABCDEFGHIJKLMN"]
    celeba_tree(folder, labels, names, [n // 2 + 2880 for n in range(n)], parts)
    images = {
        f"{i + 1:06d}.jpg": int(c) + 2 * int(o) for i, (c, o) in enumerate(zip(classes, others[:, 0], strict=True))
    }
    painted(folder / "img_align_celeba", images, 4)
    return folder


def derm7pt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every third case is a melanoma, which most criteria score for; one cell is empty."""
    sick = {"pigment_network": "atypical", "streaks": "irregular", "blue_whitish_veil": "present"}
    cases: list[Mapping[str, str]] = [
        {"diagnosis": "melanoma (in situ)", **dict(list(sick.items())[: 2 + n % 2])}
        if n % 3 == 0
        else {
            "diagnosis": "clark nevus",
            "dots_and_globules": ("absent", "irregular")[n % 2],
            "regression_structures": "absent",
        }
        for n in range(90)
    ]
    cases[1] = {**cases[1], "pigmentation": ""}
    everyone = range(len(cases))
    places = {"train": [n for n in everyone if n % 10 < 6], "valid": [n for n in everyone if n % 10 in (6, 7)]}
    places["test"] = [n for n in everyone if n % 10 > 7]
    root = derm7pt_tree(folder, cases, places)
    painted(root / "images", {f"NEL/nel{n + 1:03d}.jpg": int(n % 3 == 0) for n in everyone}, 2)
    return folder


TREES: Mapping[str, Callable[[Path, pytest.MonkeyPatch], Path]] = {
    "cub": cub,
    "oai": oai,
    "celeba": celeba,
    "derm7pt": derm7pt,
}


def painted(root: Path, kinds: Mapping[str, int], count: int) -> None:
    """Images in place of the noise: a patch whose place and colour say the kind, on noise of the row's own."""
    for seed, (name, kind) in enumerate(kinds.items()):
        pixels = np.random.default_rng(seed).integers(0, 100, (16, 16, 3), dtype=np.uint8)
        angle = 2 * np.pi * kind / count
        row, column = int(6 + 5 * np.sin(angle)), int(6 + 5 * np.cos(angle))
        pixels[row : row + 5, column : column + 5] = (255, 255 * kind // count, 255 - 255 * kind // count)
        Image.fromarray(pixels).save(root / name)
