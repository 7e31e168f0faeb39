"""CUB-200-2011: 11,788 photographs of 200 species of birds with 312 attributes each.

Concepts are class-level: a species has an attribute when its training images say so by vote (``app.datasets.votes``),
and those that too few species have are left out, as in Koh et al., "Concept Bottleneck Models" (2020). Training images
here are those of the split ``train``: the calibration rows have no vote, nor have the test rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from app.datasets import votes as voting
from app.datasets.importers import splits as splitting
from app.datasets.importers.files import Expected, find_all, malformed, numbered_lines, pairs, require_images
from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem, VoteBook, checked, counted, some

TITLE = "CUB-200-2011"
_ARCHIVE = "CUB_200_2011.tgz of the project page “Caltech-UCSD Birds-200-2011”"
_IMAGES = Expected(("images",), _ARCHIVE, directory=True)
_ATTRIBUTES = Expected(
    ("attributes/attributes.txt", "../attributes.txt", "attributes.txt"),
    f"{_ARCHIVE}, where it lies beside the directory CUB_200_2011",
)
_LISTS = tuple(
    Expected((name,), _ARCHIVE)
    for name in (
        "images.txt",
        "classes.txt",
        "image_class_labels.txt",
        "train_test_split.txt",
        "attributes/image_attribute_labels.txt",
    )
)


def read_cub(
    source: Path,
    *,
    splits: Mapping[str, str] | None = None,
    mask: frozenset[str] | None = None,
    min_classes: int = voting.MIN_CLASSES,
) -> ImportPlan:
    """The data set in ``source``, the directory CUB_200_2011 or the one above it.

    Args:
        splits: split by key (an image's file name without its suffix); default the official one, of whose training
            images a fifth, chosen by a hash of the file name, is calibration.
        mask: attributes to keep as concepts, by number or name; default those that ``min_classes`` classes have.

    Raises:
        SourceProblem: files or images are missing, or not as expected.
    """
    root = source / "CUB_200_2011" if (source / "CUB_200_2011").is_dir() else source
    _, attributes_file, *lists = find_all(TITLE, root, (_IMAGES, _ATTRIBUTES, *_LISTS))
    images_file, classes_file, labels_file, official_file, votes_file = lists
    images = _by_id(images_file)
    classes = _by_id(classes_file)
    attributes = _by_id(attributes_file)
    class_of = _known(labels_file, images, classes)
    is_training = _known(official_file, images, {"0": "test", "1": "train"})
    require_images(TITLE, root / "images", images.values(), _ARCHIVE)

    keys = {image_id: Path(path).stem for image_id, path in images.items()}
    placed = {
        image_id: splitting.split_of(key, splits, _official_split(is_training[image_id] == "1", images[image_id]))
        for image_id, key in keys.items()
    }
    splitting.require_splits(f"{TITLE} cannot be imported:", [keys[i] for i, split in placed.items() if not split])
    votes, extra = _votes(votes_file, images, attributes)
    index = {class_id: number for number, class_id in enumerate(classes)}
    class_index = np.array([index[class_of[image_id]] for image_id in images], np.int64)
    trained = np.array([placed[image_id] == "train" for image_id in images], bool)
    counts = voting.tally(votes[trained], class_index[trained], len(classes))
    labels = voting.class_labels(counts)
    kept = voting.concept_mask(labels, min_classes) if mask is None else _mask(mask, attributes)
    names = tuple(attributes.values())
    by_class = [tuple(row) for row in labels[:, kept].tolist()]
    rows = [
        ImportedRow(key, placed[image_id], classes[class_id], images[image_id], None, by_class[index[class_id]])
        for (image_id, key), class_id in zip(keys.items(), map(class_of.__getitem__, keys), strict=True)
    ]
    notes = [f"{kept.sum()} of {len(names)} attributes are concepts."]
    if extra:
        notes.append(f"{counted(extra, 'line')} of {votes_file.name} had more than five columns; the first four count.")
    if ties := int((counts[:, kept, 0] == counts[:, kept, 1]).sum()):
        silent = int((counts[:, kept].sum(axis=2) == 0).sum())
        notes.append(f"{counted(ties, 'tie')} of votes count as 1, {silent:,} of them of no votes at all.")
    return checked(
        ImportPlan(
            TITLE,
            tuple(name for name, keep in zip(names, kept, strict=True) if keep),
            tuple(classes.values()),
            rows,
            root / "images",
            tuple(notes),
            VoteBook(names, votes, min_classes),
        )
    )


def _official_split(is_training: bool, image: str) -> str:
    if not is_training:
        return "test"
    return "calibration" if splitting.is_calibration(Path(image).name) else "train"


def _by_id(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, item_id, name in pairs(path):
        if item_id in found:
            raise malformed(path, number, "repeats an earlier number")
        found[item_id] = name
    if not found:
        raise SourceProblem("A file is not as expected:", [f"{path} is empty."])
    return found


def _known(path: Path, images: Mapping[str, str], meanings: Mapping[str, str]) -> dict[str, str]:
    """The second field of every image's line; it is one of ``meanings``."""
    found: dict[str, str] = {}
    for number, image_id, value in pairs(path):
        if image_id not in images:
            raise malformed(path, number, "names an image that images.txt lacks")
        if value not in meanings:
            raise malformed(path, number, "has a value that is not known")
        found[image_id] = value
    if absent := [name for image_id, name in images.items() if image_id not in found]:
        raise SourceProblem(
            "A file is cut off:", [f"{path} lacks {counted(len(absent), 'image')} of images.txt: {some(absent)}."]
        )
    return found


def _votes(path: Path, images: Mapping[str, str], attributes: Mapping[str, str]) -> tuple[voting.Votes, int]:
    """Votes, one row per image and one column per attribute, and the number of lines with more than five columns.

    Some lines of the published file have a column too many between the certainty and the time. The first four, which
    alone are used, are right in all of them.
    """
    row_of = {image_id: row for row, image_id in enumerate(images)}
    column_of = {attribute_id: column for column, attribute_id in enumerate(attributes)}
    codes = {
        (label, certainty): int(label) + 2 * int(certainty)
        for label in ("0", "1")
        for certainty in ("1", "2", "3", "4")
    }
    m = len(attributes)
    found = array("B", bytes(len(images) * m))
    extra = filled = 0
    for number, line in numbered_lines(path):
        fields = line.split(None, 5)
        try:
            image_id, attribute_id, label, certainty = fields[:4]
            place = row_of[image_id] * m + column_of[attribute_id]
            code = codes[label, certainty]
        except (KeyError, ValueError):
            raise malformed(path, number, "is not: image, attribute, 0 or 1, certainty of 1 to 4") from None
        extra += len(fields) > 5
        filled += found[place] == voting.NO_VOTE
        found[place] = code
    votes = np.frombuffer(found, np.uint8).reshape(len(images), m)
    if filled < votes.size:
        names = list(images.values())
        lacking = [names[row] for row in np.flatnonzero((votes == voting.NO_VOTE).any(axis=1))]
        raise SourceProblem(
            "A file is cut off:",
            [
                f"{path} has {filled:,} of {votes.size:,} labels; {counted(len(lacking), 'image')} incomplete: "
                f"{some(lacking)}. Unpack {_ARCHIVE} again."
            ],
        )
    return votes, extra


def _mask(mask: frozenset[str], attributes: Mapping[str, str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    unknown = sorted(mask - set(attributes) - set(attributes.values()))
    if unknown:
        raise SourceProblem(
            "The mask does not fit:", [f"{counted(len(unknown), 'attribute')} unknown: {some(unknown)}."]
        )
    return np.array([number in mask or name in mask for number, name in attributes.items()], bool)
