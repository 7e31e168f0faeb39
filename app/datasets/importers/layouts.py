"""Which layouts there are, and what may be chosen for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from app.datasets.importers.celeba import read_celeba
from app.datasets.importers.cub import read_cub
from app.datasets.importers.derm7pt import Diagnosis, read_derm7pt
from app.datasets.importers.files import existing_directory
from app.datasets.importers.folder import read_folder
from app.datasets.importers.plan import ImportPlan, SourceProblem
from app.datasets.importers.splits import read_split_file
from app.datasets.importers.tables import OAI_CONCEPTS, THRESHOLD, Columns, read_table
from app.datasets.importers.writing import read_mask


class Layout(StrEnum):
    """How a data set lies on disk."""

    CUB = "cub"
    CELEBA = "celeba"
    DERM7PT = "derm7pt"
    OAI = "oai"
    FOLDER = "folder"


@dataclass(frozen=True)
class Choices:
    """What a user chose; ``None`` is the layout's default. ``thresholds`` are ``2`` or ``NAME=2``.

    An empty ``subject_column`` says that the table has none.
    """

    splits: Path | None = None
    mask: Path | None = None
    targets: Sequence[str] | None = None
    diagnosis: Diagnosis | None = None
    table: Path | None = None
    image_column: str | None = None
    class_column: str | None = None
    concepts: Sequence[str] | None = None
    subject_column: str | None = None
    split_column: str | None = None
    thresholds: Sequence[str] | None = None
    merged: Sequence[Sequence[str]] | None = None


_OF_ALL = {"splits"}
_CHOICES = {
    Layout.CUB: {"mask"},
    Layout.CELEBA: {"targets"},
    Layout.DERM7PT: {"diagnosis"},
    Layout.OAI: {
        "table",
        "image_column",
        "class_column",
        "concepts",
        "subject_column",
        "split_column",
        "thresholds",
        "merged",
    },
    Layout.FOLDER: {"table"},
}
OPTIONS = {"thresholds": "--threshold", "merged": "--merge"}  # where the option is not called like the choice


def read_layout(layout: Layout, source: Path, choices: Choices) -> ImportPlan:
    """The data set that lies in ``source``.

    Raises:
        SourceProblem: files or images are missing or not as expected, or a choice does not apply to the layout.
    """
    given = {field.name for field in fields(choices) if getattr(choices, field.name) is not None}
    if strange := sorted(given - _OF_ALL - _CHOICES[layout]):
        names = ", ".join(OPTIONS.get(name, "--" + name.replace("_", "-")) for name in strange)
        raise SourceProblem("Some options do not apply:", [f"The layout {layout} has no {names}."])
    existing_directory(source)
    splits = None if choices.splits is None else read_split_file(choices.splits)
    match layout:
        case Layout.CUB:
            mask = None if choices.mask is None else read_mask(choices.mask)
            return read_cub(source, splits=splits, mask=mask)
        case Layout.CELEBA:
            return read_celeba(source, splits=splits, targets=choices.targets)
        case Layout.DERM7PT:
            return read_derm7pt(source, splits=splits, diagnosis=choices.diagnosis or Diagnosis.GROUPS)
        case Layout.OAI:
            return read_table(source, choices.table or source / "labels.csv", columns_of(choices), splits=splits)
        case Layout.FOLDER:
            return read_folder(source, choices.table, splits=splits)


def columns_of(choices: Choices) -> Columns:
    """What the columns of an OAI-style table mean.

    Raises:
        SourceProblem: a threshold is neither a number nor ``NAME=NUMBER``.
    """
    threshold, thresholds = THRESHOLD, {}
    for text in choices.thresholds or ():
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise SourceProblem("A threshold is not clear:", [f"{text!r} is neither 2 nor CONCEPT=2."]) from None
        if name:
            thresholds[name] = value
        else:
            threshold = value
    return Columns(
        image=choices.image_column or Columns.image,
        class_=choices.class_column or Columns.class_,
        concepts=tuple(choices.concepts or OAI_CONCEPTS),
        subject=Columns.subject if choices.subject_column is None else choices.subject_column or None,
        split=choices.split_column,
        threshold=threshold,
        thresholds=thresholds,
        merged=tuple(tuple(group) for group in choices.merged or ()),
    )
