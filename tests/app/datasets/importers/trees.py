"""Tiny directories of the exact layouts of public data sets, with real image files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.app.datasets.images import encoded

SPECIES = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
CUB_ATTRIBUTES = (
    "has_bill_shape::curved_(up_or_down)",
    "has_wing_color::blue",
    "has_wing_color::brown",
    "has_tail_shape::forked_tail",
)
IMAGES_PER_SPECIES = 12
OFFICIALLY_TRAINING = 8  # of each species, the first ones

Vote = tuple[int, int]  # label, certainty


def write_images(root: Path, names: Iterable[str], format_: str = "JPEG") -> None:
    for seed, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(seed, format_, channels=3))


def cub_vote(species: int, number: int, attribute: int) -> Vote:
    """The first attribute is of all species, the second of the first, the third of none, the fourth of two."""
    present = (True, species == 0, False, species < 2)[attribute]
    return (1, 4) if present else (0, 3)


def cub_images() -> list[tuple[int, str]]:
    """Species and path of every image, in the order of their numbers."""
    return [
        (species, f"{name}/{name[4:]}_{number:04d}_{7961 + 100 * species + number}.jpg")
        for species, name in enumerate(SPECIES)
        for number in range(IMAGES_PER_SPECIES)
    ]


def cub_tree(folder: Path, vote: Callable[[int, int, int], Vote] = cub_vote) -> Path:
    """What CUB_200_2011.tgz unpacks into ``folder``, attributes.txt at the top level."""
    root = folder / "CUB_200_2011"
    images = cub_images()
    write_images(root / "images", (path for _, path in images))
    lines(root / "images.txt", (f"{n} {path}" for n, (_, path) in enumerate(images, 1)))
    lines(root / "classes.txt", (f"{n} {name}" for n, name in enumerate(SPECIES, 1)))
    lines(root / "image_class_labels.txt", (f"{n} {species + 1}" for n, (species, _) in enumerate(images, 1)))
    lines(
        root / "train_test_split.txt",
        (f"{n} {int((n - 1) % IMAGES_PER_SPECIES < OFFICIALLY_TRAINING)}" for n in range(1, len(images) + 1)),
    )
    lines(folder / "attributes.txt", (f"{n} {name}" for n, name in enumerate(CUB_ATTRIBUTES, 1)))
    labels = []
    for n, (species, _) in enumerate(images, 1):
        for attribute in range(len(CUB_ATTRIBUTES)):
            label, certainty = vote(species, (n - 1) % IMAGES_PER_SPECIES, attribute)
            # As in the published file: a few lines have one column too many before the time.
            extra = " 0" if n == 5 and attribute == 1 else ""
            labels.append(f"{n} {attribute + 1} {label} {certainty}{extra} 1.509")
    lines(root / "attributes" / "image_attribute_labels.txt", labels)
    return root


def celeba_tree(root: Path, labels: np.ndarray, names: Sequence[str], people: Sequence[int], parts: str) -> Path:
    """Annotations beside img_align_celeba; ``labels`` is 0 and 1, of shape (images, attributes)."""
    images = [f"{n:06d}.jpg" for n in range(1, len(labels) + 1)]
    write_images(root / "img_align_celeba", images)
    signs = np.where(labels == 1, 1, -1)
    rows = [image + "".join(f" {sign:2d}" for sign in row) for image, row in zip(images, signs, strict=True)]
    lines(root / "list_attr_celeba.txt", [str(len(images)), " ".join(names) + " ", *rows])
    lines(root / "list_eval_partition.txt", (f"{image} {part}" for image, part in zip(images, parts, strict=True)))
    lines(root / "identity_CelebA.txt", (f"{image} {person}" for image, person in zip(images, people, strict=True)))
    return root


DERM_DEFAULTS = {
    "seven_point_score": "0",
    "pigment_network": "absent",
    "streaks": "absent",
    "pigmentation": "absent",
    "regression_structures": "absent",
    "dots_and_globules": "absent",
    "blue_whitish_veil": "absent",
    "vascular_structures": "absent",
    "level_of_diagnostic_difficulty": "low",
    "elevation": "flat",
    "location": "back",
    "sex": "female",
    "clinic": "NEL/nel000.jpg",
    "management": "excision",
    "case_id": "",
    "notes": "grown, as she says",
}


def derm7pt_tree(folder: Path, cases: Sequence[Mapping[str, str]], splits: Mapping[str, Sequence[int]]) -> Path:
    """What release_v0.zip unpacks into ``folder``; case ``i`` has the image ``NEL/nel001.jpg`` and so on."""
    root = folder / "release_v0"
    rows = [
        {
            "case_num": str(n),
            "diagnosis": "clark nevus",
            **DERM_DEFAULTS,
            "derm": f"NEL/nel{n:03d}.jpg",
            **case,
        }
        for n, case in enumerate(cases, 1)
    ]
    write_images(root / "images", (row["derm"] for row in rows))
    table(root / "meta" / "meta.csv", rows)
    for name in ("train", "valid", "test"):
        table(root / "meta" / f"{name}_indexes.csv", [{"": str(i), "indexes": str(i)} for i in splits[name]])
    return root


def lines(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts))


def table(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """CSV; cells with a comma are quoted."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    lines(path, (",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in cells))
