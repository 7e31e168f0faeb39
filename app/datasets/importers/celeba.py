"""CelebA: 202,599 photographs of 10,177 people with 40 binary attributes each.

Eight attributes are the target and the other 32 the concepts, after Espinosa Zarlenga et al., "Concept Embedding
Models" (2022). A model here has one class per row, so a class is one combination of the eight: its name is their values
as bits, in the order of the file's columns. Combinations that no image has are no classes. The people are subjects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.datasets.importers import splits as splitting
from app.datasets.importers.files import Expected, find_all, malformed, numbered_lines, pairs, require_images
from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem, checked, counted, some

TITLE = "CelebA"
TARGETS = 8
_PAGE = "the project page “Large-scale CelebFaces Attributes (CelebA) Dataset”"
_IMAGE_SOURCE = f"Img/img_align_celeba.zip of {_PAGE}"
_IMAGES = Expected(
    ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba"), _IMAGE_SOURCE, directory=True
)
_ATTRIBUTES = Expected(("list_attr_celeba.txt", "Anno/list_attr_celeba.txt"), f"the folder Anno of {_PAGE}")
_PARTITION = Expected(("list_eval_partition.txt", "Eval/list_eval_partition.txt"), f"the folder Eval of {_PAGE}")
_IDENTITY = Expected(("identity_CelebA.txt", "Anno/identity_CelebA.txt"), f"the folder Anno of {_PAGE}")
_PARTITIONS = {"0": "train", "1": "calibration", "2": "test"}
_VALUES = {"-1": 0, "1": 1}


def read_celeba(
    root: Path, *, splits: Mapping[str, str] | None = None, targets: Sequence[str] | None = None
) -> ImportPlan:
    """The data set in ``root``.

    Args:
        splits: split by key (an image's file name without its suffix); default the official partition, whose
            validation part is calibration.
        targets: attributes that make the class; default the eight that are most balanced, that is, have a share
            nearest to one half among training images (the earlier column where two are equally near).

    Raises:
        SourceProblem: files or images are missing, or not as expected.
    """
    folder, attributes_file, partition_file, identity_file = find_all(
        TITLE, root, (_IMAGES, _ATTRIBUTES, _PARTITION, _IDENTITY)
    )
    attributes, images, labels = _attributes(attributes_file)
    partition = _by_image(partition_file, images)
    identity = _by_image(identity_file, images)
    if unknown := sorted(set(partition.values()) - set(_PARTITIONS)):
        raise SourceProblem("A file is not as expected:", [f"{partition_file} has partitions {some(unknown)}."])
    require_images(TITLE, folder, images, _IMAGE_SOURCE)

    keys = [Path(image).stem for image in images]
    placed = [
        splitting.split_of(key, splits, _PARTITIONS[partition[image]]) for key, image in zip(keys, images, strict=True)
    ]
    splitting.require_splits(f"{TITLE} cannot be imported:", [k for k, s in zip(keys, placed, strict=True) if not s])
    trained = labels[np.array([split == "train" for split in placed], bool)]
    columns = _most_balanced(trained) if targets is None else _columns(targets, attributes)
    others = [column for column in range(len(attributes)) if column not in columns]
    bits = ["".join(map(str, row)) for row in labels[:, columns].tolist()]
    rows = [
        ImportedRow(key, split, name, image, f"celeba:{identity[image]}", bytes(row))
        for key, split, name, image, row in zip(keys, placed, bits, images, labels[:, others].tolist(), strict=True)
    ]
    named = [attributes[column] for column in columns]
    return checked(
        ImportPlan(
            TITLE,
            tuple(attributes[column] for column in others),
            tuple(sorted(set(bits))),
            rows,
            folder,
            (f"A class is the values of {', '.join(named)}, as bits in this order.",),
        )
    )


def _attributes(path: Path) -> tuple[tuple[str, ...], list[str], NDArray[np.uint8]]:
    """Names of attributes, names of images, labels 0 and 1 of shape ``(n, attributes)``."""
    lines = numbered_lines(path)
    _, count = next(lines, (1, ""))
    if not count.isdigit():
        raise malformed(path, 1, "is not the number of images")
    _, header = next(lines, (2, ""))
    names = tuple(header.split())
    images: list[str] = []
    labels = bytearray()
    for number, line in lines:
        image, *values = line.split()
        try:
            row = bytes(_VALUES[value] for value in values)
        except KeyError:
            raise malformed(path, number, "has a value other than -1 and 1") from None
        if len(row) != len(names):
            raise malformed(path, number, f"has {counted(len(row), 'value')} for {len(names)} attributes")
        images.append(image)
        labels += row
    if len(images) != int(count):
        raise SourceProblem(
            "A file is cut off:", [f"{path} announces {counted(int(count), 'image')} and has {len(images):,}."]
        )
    return names, images, np.frombuffer(labels, np.uint8).reshape(len(images), len(names))


def _by_image(path: Path, images: Sequence[str]) -> dict[str, str]:
    found = {image: value for _, image, value in pairs(path)}
    if absent := [image for image in images if image not in found]:
        raise SourceProblem(
            "A file is cut off:", [f"{path} lacks {counted(len(absent), 'image')} of the attributes: {some(absent)}."]
        )
    return found


def _most_balanced(labels: NDArray[np.uint8]) -> list[int]:
    """Columns of the ``TARGETS`` attributes whose counts are nearest to half the rows, ascending."""
    distance = np.abs(2 * labels.sum(axis=0, dtype=np.int64) - len(labels))  # integers: ties are ties
    return sorted(np.argsort(distance, kind="stable")[:TARGETS].tolist())


def _columns(targets: Sequence[str], attributes: Sequence[str]) -> list[int]:
    if unknown := [name for name in targets if name not in attributes]:
        raise SourceProblem(
            "The targets do not fit:", [f"{counted(len(unknown), 'attribute')} unknown: {some(unknown)}."]
        )
    return sorted({attributes.index(name) for name in targets})
