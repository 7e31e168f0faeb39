"""Derm7pt: 1,011 cases of skin lesions, each with a dermoscopic image and the seven-point checklist.

A concept is one criterion of the checklist (Argenziano et al., 1998): 1 where what was seen scores points. The seven
concepts follow from the criteria's values in ``meta.csv``:

=====================  ====================================================
criterion              1 for
=====================  ====================================================
pigment_network        atypical
blue_whitish_veil      present
vascular_structures    dotted, linear irregular
pigmentation           diffuse irregular, localized irregular
streaks                irregular
dots_and_globules      irregular
regression_structures  blue areas, white areas, combinations
=====================  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from app.datasets.importers import splits as splitting
from app.datasets.importers.files import Expected, find_all, malformed, require_columns, require_images, table
from app.datasets.importers.plan import ImportedRow, ImportPlan, SourceProblem, checked, counted, some
from app.datasets.snapshots import UNKNOWN

TITLE = "Derm7pt"
_ARCHIVE = "release_v0.zip of the project page “Seven-Point Checklist Dermatology Dataset”"
_IMAGES = Expected(("images",), _ARCHIVE, directory=True)
_TABLES = tuple(
    Expected((f"meta/{name}",), _ARCHIVE)
    for name in ("meta.csv", "train_indexes.csv", "valid_indexes.csv", "test_indexes.csv")
)
_SPLITS = ("train", "calibration", "test")

# Criterion: values that score no point, values that do.
CRITERIA: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "pigment_network": (frozenset({"absent", "typical"}), frozenset({"atypical"})),
    "blue_whitish_veil": (frozenset({"absent"}), frozenset({"present"})),
    "vascular_structures": (
        frozenset({"absent", "arborizing", "comma", "hairpin", "within regression", "wreath"}),
        frozenset({"dotted", "linear irregular"}),
    ),
    "pigmentation": (
        frozenset({"absent", "diffuse regular", "localized regular"}),
        frozenset({"diffuse irregular", "localized irregular"}),
    ),
    "streaks": (frozenset({"absent", "regular"}), frozenset({"irregular"})),
    "dots_and_globules": (frozenset({"absent", "regular"}), frozenset({"irregular"})),
    "regression_structures": (frozenset({"absent"}), frozenset({"blue areas", "white areas", "combinations"})),
}
_UNKNOWN = frozenset({"", "nan", "unknown"})
_GROUPS: Mapping[str, frozenset[str]] = {
    "basal cell carcinoma": frozenset({"basal cell carcinoma"}),
    "nevus": frozenset(
        {
            "nevus",
            "blue nevus",
            "clark nevus",
            "combined nevus",
            "congenital nevus",
            "dermal nevus",
            "recurrent nevus",
            "reed or spitz nevus",
        }
    ),
    "melanoma": frozenset(
        {
            "melanoma",
            "melanoma (in situ)",
            "melanoma (less than 0.76 mm)",
            "melanoma (0.76 to 1.5 mm)",
            "melanoma (more than 1.5 mm)",
            "melanoma metastasis",
        }
    ),
    "miscellaneous": frozenset({"dermatofibroma", "lentigo", "melanosis", "miscellaneous", "vascular lesion"}),
    "seborrheic keratosis": frozenset({"seborrheic keratosis"}),
}
_GROUP_OF = {diagnosis: group for group, diagnoses in _GROUPS.items() for diagnosis in diagnoses}


class Diagnosis(StrEnum):
    """What the class says: the five groups of Kawahara et al. (2019), or melanoma against all else."""

    GROUPS = "groups"
    MELANOMA = "melanoma"

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(_GROUPS) if self is Diagnosis.GROUPS else ("other", "melanoma")

    def of(self, group: str) -> str:
        """The class of a diagnosis in ``group``."""
        return group if self is Diagnosis.GROUPS or group == "melanoma" else "other"


def read_derm7pt(
    source: Path, *, splits: Mapping[str, str] | None = None, diagnosis: Diagnosis = Diagnosis.GROUPS
) -> ImportPlan:
    """The data set in ``source``, the directory release_v0 or the one above it; dermoscopic images only.

    Args:
        splits: split by key (``case-`` and the number of the case); default the official one, whose validation part
            is calibration.

    Raises:
        SourceProblem: files or images are missing, or not as expected.
    """
    root = source / "release_v0" if (source / "release_v0").is_dir() else source
    folder, meta_file, *index_files = find_all(TITLE, root, (_IMAGES, *_TABLES))
    official = _official(meta_file, index_files)
    rows: list[ImportedRow] = []
    unread: set[str] = set()
    for number, case in table(meta_file):
        if number == 0:
            require_columns(meta_file, case, ("case_num", "diagnosis", "derm", *CRITERIA))
            continue
        group = _GROUP_OF.get(case["diagnosis"].lower())
        if group is None:
            unread.add(case["diagnosis"])
            continue
        key = f"case-{case['case_num']}"
        # The column case_id is filled for some cases only; it may join several rows.
        person = f"id-{case['case_id']}" if case.get("case_id", "").lower() not in _UNKNOWN else key
        rows.append(
            ImportedRow(
                key,
                splitting.split_of(key, splits, official.get(number - 1, "")),
                diagnosis.of(group),
                case["derm"],
                f"derm7pt:{person}",
                tuple(_label(meta_file, number, name, case[name]) for name in CRITERIA),
            )
        )
    if unread:
        raise SourceProblem(
            "A file is not as expected:",
            [f"{meta_file} has diagnoses that are not known: {some(sorted(unread))}."],
        )
    if unplaced := [row.key for row in rows if not row.split]:
        where = "The split file lacks" if splits is not None else "No file of indexes names"
        raise SourceProblem(
            f"This is not a complete {TITLE}:", [f"{where} {counted(len(unplaced), 'case')}: {some(unplaced)}."]
        )
    require_images(TITLE, folder, (row.image for row in rows), _ARCHIVE)
    return checked(ImportPlan(TITLE, tuple(CRITERIA), diagnosis.classes, rows, folder))


def _official(meta_file: Path, index_files: list[Path]) -> dict[int, str]:
    """Splits by position in ``meta.csv``, counted from 0."""
    cases = sum(1 for number, _ in table(meta_file) if number)
    placed: dict[int, str] = {}
    for split, path in zip(_SPLITS, index_files, strict=True):
        for number, row in table(path):
            if number == 0:
                require_columns(path, row, ("indexes",))
                continue
            if not row["indexes"].isdigit() or int(row["indexes"]) >= cases:
                raise malformed(
                    path, number, f"is no position among the {cases:,} cases of {meta_file.name}", line="Row"
                )
            if placed.setdefault(int(row["indexes"]), split) != split:
                raise malformed(path, number, "puts a case into a second split", line="Row")
    return placed


def _label(path: Path, number: int, criterion: str, value: str) -> int:
    without, with_ = CRITERIA[criterion]
    if value.lower() in _UNKNOWN:
        return UNKNOWN
    if value.lower() not in without | with_:
        raise malformed(path, number, f"has a value of {criterion} that is not known: {value!r}", line="Row")
    return int(value.lower() in with_)
