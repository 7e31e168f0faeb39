"""A table with one row per image: grades as concepts, as knee radiographs of the Osteoarthritis Initiative have them.

A concept is an ordinal grade made binary: 1 where the grade reaches a threshold. Which grades are concepts by default
is from Koh et al., "Concept Bottleneck Models" (2020): ten of osteophytes, sclerosis and narrowing of the joint space.
The class is the Kellgren-Lawrence grade.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.datasets.importers import splits as splitting
from app.datasets.importers.files import malformed, require_columns, require_images, table
from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem, checked, counted, some
from app.datasets.snapshots import UNKNOWN

TITLE = "Osteoarthritis Initiative"
OAI_CONCEPTS = tuple(f"xr{grade}{side}" for side in ("m", "l") for grade in ("osf", "scf", "js", "ost", "sct"))
THRESHOLD = 1.0


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        subject, split: optional; ``None`` where the table has no such column. Without a split, rows are placed by a
            hash of their subject, or of their key where they have none.
        thresholds: by concept; others have ``threshold``.
        merged: values of the class column that are one class, called by all of them, as ``0-1``.
    """

    image: str = "image"
    class_: str = "xrkl"
    concepts: tuple[str, ...] = OAI_CONCEPTS
    subject: str | None = "id"
    split: str | None = None
    threshold: float = THRESHOLD
    thresholds: Mapping[str, float] = field(default_factory=dict)
    merged: Sequence[tuple[str, ...]] = ()


def read_table(
    root: Path, path: Path, columns: Columns, *, splits: Mapping[str, str] | None = None, title: str = TITLE
) -> ImportPlan:
    """The data set of the table ``path``, whose images lie below ``root``. A row's key is its image's path.

    An empty grade, ``nan`` and the codes that start with a full stop (``.``, ``.A``) are unknown.

    Raises:
        SourceProblem: the table or images are missing, a grade is no number, a row has no class or no split.
    """
    if not path.is_file():
        raise SourceProblem("Nothing can be imported:", [f"There is no table {path}. Name it with --table."])
    if unknown := sorted(set(columns.thresholds) - set(columns.concepts)):
        raise SourceProblem("The thresholds do not fit:", [f"These are no concepts: {some(unknown)}."])
    class_of = {value: "-".join(group) for group in columns.merged for value in group}
    limits = [columns.thresholds.get(name, columns.threshold) for name in columns.concepts]
    rows: list[ImportedRow] = []
    classless: list[str] = []
    for number, cells in table(path):
        if number == 0:
            optional = (name for name in (columns.subject, columns.split) if name)
            require_columns(path, cells, (columns.image, columns.class_, *columns.concepts, *optional))
            continue
        grade = _plain(cells[columns.class_])
        if grade is None:
            classless.append(str(number))
            continue
        image = cells[columns.image].replace("\\", "/")
        key = key_of(image)
        subject = (cells[columns.subject] or None) if columns.subject else None
        rows.append(
            ImportedRow(
                key,
                _split(path, number, cells, columns, splits, key, subject),
                class_of.get(grade, grade),
                image,
                subject,
                tuple(
                    _binary(path, number, name, cells[name], limit)
                    for name, limit in zip(columns.concepts, limits, strict=True)
                ),
            )
        )
    if classless:
        raise SourceProblem(
            "The table has rows without a class:",
            [f"{counted(len(classless), 'row')} of {path} without {columns.class_}: {some(classless)}."],
        )
    splitting.require_splits("The table cannot be imported:", [row.key for row in rows if not row.split])
    require_images("set of images", root, (row.image for row in rows), f"the images that {path.name} names")
    return checked(
        ImportPlan(
            title,
            columns.concepts,
            tuple(sorted({row.class_name for row in rows})),
            rows,
            root,
            tuple(
                f"{name} is 1 from grade {limit:g} on." for name, limit in zip(columns.concepts, limits, strict=True)
            ),
        )
    )


def key_of(image: str) -> str:
    """A row's key made of its image's path: without the suffix, with colons for slashes, which a key cannot have."""
    return str(Path(image).with_suffix("")).replace("/", ":")


def _split(
    path: Path,
    number: int,
    cells: Mapping[str, str],
    columns: Columns,
    splits: Mapping[str, str] | None,
    key: str,
    subject: str | None,
) -> str:
    if splits is not None:
        return splits.get(key, "")
    if columns.split is None:
        return splitting.three_way(subject or key)
    found = splitting.split_called(cells[columns.split])
    if found is None:
        raise malformed(path, number, "has a split other than train, calibration and test", line="Row")
    return found


def _number(text: str) -> float | None:
    """A grade; ``None`` where it is unknown. Raises ValueError."""
    if not text or text.lower() == "nan" or text == "." or (text[0] == "." and text[1:2].isalpha()):
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _binary(path: Path, number: int, name: str, text: str, threshold: float) -> int:
    try:
        grade = _number(text)
    except ValueError:
        raise malformed(path, number, f"has no number in the column {name}: {text[:40]!r}", line="Row") from None
    return UNKNOWN if grade is None else int(grade >= threshold)


def _plain(text: str) -> str | None:
    """The name of a class: whole numbers lose the ``.0`` that dataframes give them."""
    try:
        value = _number(text)
    except ValueError:
        return text
    return None if value is None else f"{value:g}"
