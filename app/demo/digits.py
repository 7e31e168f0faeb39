"""The demo's data: scikit-learn's 1,797 handwritten digits, with concepts that say how each digit is drawn.

Every row of a class has the class's concepts. They describe the digits as these writers draw them (seven has a bar,
four is often open at the top and so counts as having no loop):

========================  = = = = = = = = = =
concept                   0 1 2 3 4 5 6 7 8 9
========================  = = = = = = = = = =
closed loop               x           x   x x
upper loop                                x x
lower loop                            x   x
vertical stroke             x     x x
horizontal stroke             x   x x   x
diagonal stroke             x x   x     x
opening to the left           x x   x   x   x
opening to the right          x     x x
crossing                          x     x x
========================  = = = = = = = = = =

Any two digits differ in at least two concepts, so that they stay apart when one concept is dropped.

The data set does not say who wrote what. Its order goes by writers, so every five consecutive rows become one subject.
Splits are drawn row by row within each class: the calibration rows are the yardstick for how a removed row should look
once it is unseen, and so should be rows like any other.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = tuple(str(digit) for digit in range(10))
DIGITS_WITH: Mapping[str, frozenset[int]] = {
    "closed loop": frozenset({0, 6, 8, 9}),
    "upper loop": frozenset({8, 9}),
    "lower loop": frozenset({6, 8}),
    "vertical stroke": frozenset({1, 4, 5}),
    "horizontal stroke": frozenset({2, 4, 5, 7}),
    "diagonal stroke": frozenset({1, 2, 4, 7}),
    "opening to the left": frozenset({2, 3, 5, 7, 9}),
    "opening to the right": frozenset({2, 5, 6}),
    "crossing": frozenset({4, 7, 8}),
}
CONCEPTS = tuple(DIGITS_WITH)

_ROWS_PER_SUBJECT = 5
_BRIGHTEST = 16  # the data set counts dark pixels in blocks of 4 × 4
_SHARES = {"train": 0.60, "calibration": 0.20, "test": 0.20}
_HELD_BACK = 0.10  # of train


@dataclass(frozen=True)
class DigitRow:
    """One image with its labels; ``png`` is 8 × 8 pixels, gray."""

    key: str
    split: str
    digit: str
    subject: str
    concepts: Mapping[str, int]
    png: bytes

    @property
    def image(self) -> str:
        return f"{self.key}.png"


@dataclass(frozen=True)
class Digits:
    """Rows to register, and rows of the training split to add later."""

    rows: tuple[DigitRow, ...]
    held_back: tuple[DigitRow, ...]


@dataclass(frozen=True)
class PlantedLabel:
    """A label made wrong on purpose, and what it was."""

    key: str
    concept: str
    right: int


def load(seed: int = 0) -> Digits:
    """All rows; ``seed`` decides about splits and about who is held back."""
    data = load_digits()
    split_of, held_back = _assigned(data.target, seed)
    rows = [
        DigitRow(
            key=f"digit-{number:04d}",
            split=split_of[number],
            digit=str(target),
            subject=f"writer-{number // _ROWS_PER_SUBJECT:03d}",
            concepts={name: int(target in digits) for name, digits in DIGITS_WITH.items()},
            png=_png(image),
        )
        for number, (target, image) in enumerate(zip(data.target.tolist(), data.images, strict=True))
    ]
    return Digits(
        tuple(row for number, row in enumerate(rows) if number not in held_back),
        tuple(row for number, row in enumerate(rows) if number in held_back),
    )


def plant_wrong_labels(
    rows: Sequence[DigitRow], fraction: float = 0.05, seed: int = 0
) -> tuple[tuple[DigitRow, ...], tuple[PlantedLabel, ...]]:
    """Turns one concept label around in a share of the training rows.

    Returns:
        All rows in their order, and what is wrong in them now.
    """
    random = np.random.default_rng(seed)
    train = [index for index, row in enumerate(rows) if row.split == "train"]
    chosen = random.choice(train, round(fraction * len(train)), replace=False)
    spoiled = list(rows)
    planted = []
    for index in sorted(chosen.tolist()):
        row = rows[index]
        concept = CONCEPTS[int(random.integers(len(CONCEPTS)))]
        planted.append(PlantedLabel(row.key, concept, row.concepts[concept]))
        spoiled[index] = replace(row, concepts={**row.concepts, concept: 1 - row.concepts[concept]})
    return tuple(spoiled), tuple(planted)


def definition(dataset_id: str = "digits") -> dict[str, Any]:
    """The part ``definition`` of ``POST /datasets``."""
    return {
        "id": dataset_id,
        "title": "Handwritten digits (scikit-learn)",
        "concepts": list(CONCEPTS),
        "classes": list(CLASSES),
    }


def manifest(rows: Sequence[DigitRow]) -> bytes:
    """The part ``manifest``, as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["key", "split", "class", "image", "subject", *CONCEPTS])
    for row in rows:
        labels = [row.concepts[name] for name in CONCEPTS]
        writer.writerow([row.key, row.split, row.digit, row.image, row.subject, *labels])
    return text.getvalue().encode()


def archive(rows: Sequence[DigitRow]) -> bytes:
    """The part ``images``: a zip of PNG files, the same bytes for the same rows."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        for row in rows:
            target.writestr(zipfile.ZipInfo(row.image), row.png)
    return file.getvalue()


def _assigned(targets: NDArray[np.integer[Any]], seed: int) -> tuple[dict[int, str], frozenset[int]]:
    """The split of each row, and the rows of train that are held back; the same shares of every class."""
    random = np.random.default_rng(seed)
    split_of: dict[int, str] = {}
    held_back: set[int] = set()
    for digit in range(10):
        order = random.permutation(np.flatnonzero(targets == digit)).tolist()
        start = 0.0
        for split, share in _SHARES.items():
            chosen = order[round(start * len(order)) : round((start + share) * len(order))]
            split_of |= dict.fromkeys(chosen, split)
            if split == "train":
                held_back |= set(chosen[: round(_HELD_BACK * len(chosen))])
            start += share
    return split_of, frozenset(held_back)


def _png(image: NDArray[np.float64]) -> bytes:
    """``image``: shape ``(8, 8)``, 0 to 16."""
    file = io.BytesIO()
    Image.fromarray(np.rint(image * 255 / _BRIGHTEST).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()
