"""A folder per class, and a table of concepts: the layout for data of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from app.datasets.importers import splits as splitting
from app.datasets.importers.files import IMAGE_SUFFIXES, existing_directory, malformed, require_columns, table
from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem, checked, counted, some
from app.datasets.importers.tables import key_of
from app.datasets.snapshots import UNKNOWN

_RESERVED = ("image", "split", "subject")
_LABELS = {"0": 0, "1": 1, "": UNKNOWN, "unknown": UNKNOWN}


def read_folder(root: Path, path: Path | None = None, *, splits: Mapping[str, str] | None = None) -> ImportPlan:
    """The images in the folders of ``root``; a folder's name is the class of all images below it.

    Args:
        path: a CSV file with the column ``image`` (a path below ``root``), optionally ``split`` and ``subject``; every
            other column is a concept with labels 0, 1, or unknown (empty, or the word). Images that it does not name
            have unknown labels. Without it, there is one concept per class, 1 in that class only.

    Raises:
        SourceProblem: no folders, a table that names images which are not there, or is not as expected.
    """
    existing_directory(root)
    images = list(_images(root))
    if not images:
        raise SourceProblem(
            "Nothing can be imported:", [f"{root} has no folders with images ({', '.join(IMAGE_SUFFIXES)}) in them."]
        )
    classes = tuple(sorted({image.partition("/")[0] for image in images}))
    described, concepts = ({}, ()) if path is None else _described(path)
    if absent := sorted(set(described) - set(images)):
        raise SourceProblem(
            "The table does not fit the folders:",
            [f"{counted(len(absent), 'image')} of {path} not below {root}: {some(absent)}."],
        )
    rows = []
    for image in images:
        key, class_name, cells = key_of(image), image.partition("/")[0], described.get(image, {})
        subject = cells.get("subject") or None
        default = cells.get("split") or splitting.three_way(subject or key)
        labels = (
            tuple(_LABELS[cells.get(name, "").lower()] for name in concepts)
            if concepts
            else tuple(int(name == class_name) for name in classes)
        )
        rows.append(ImportedRow(key, splitting.split_of(key, splits, default), class_name, image, subject, labels))
    splitting.require_splits("The folders cannot be imported:", [row.key for row in rows if not row.split])
    notes = []
    if not concepts:
        notes.append("Without a table of concepts, every class is a concept of its own.")
    elif silent := [image for image in images if image not in described]:
        notes.append(f"{counted(len(silent), 'image')} without labels in the table: {some(silent)}.")
    return checked(ImportPlan(root.resolve().name, concepts or classes, classes, rows, root, tuple(notes)))


def _images(root: Path) -> Iterator[str]:
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            for file in sorted(folder.rglob("*")):
                if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file():
                    yield file.relative_to(root).as_posix()


def _described(path: Path) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """Cells by image, and the names of the concepts."""
    if not path.is_file():
        raise SourceProblem("Nothing can be imported:", [f"There is no table {path}."])
    concepts: tuple[str, ...] = ()
    found: dict[str, dict[str, str]] = {}
    for number, cells in table(path):
        if number == 0:
            require_columns(path, cells, ("image",))
            concepts = tuple(name for name in cells if name not in _RESERVED)
            continue
        if bad := [name for name in concepts if cells[name].lower() not in _LABELS]:
            raise malformed(path, number, f"has labels other than 0, 1 and unknown: {some(bad)}", line="Row")
        if cells.get("split"):
            split = splitting.split_called(cells["split"])
            if split is None:
                raise malformed(path, number, "has a split other than train, calibration and test", line="Row")
            cells["split"] = split
        image = cells["image"].replace("\\", "/")
        if image in found:
            raise malformed(path, number, "names an image again", line="Row")
        found[image] = cells
    return found, concepts
