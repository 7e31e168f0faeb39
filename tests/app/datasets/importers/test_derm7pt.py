"""Derm7pt: criteria that score points, groups of diagnoses, official indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.datasets.importers import SourceProblem
from app.datasets.importers.derm7pt import Diagnosis, read_derm7pt
from app.datasets.snapshots import UNKNOWN
from tests.app.datasets.importers.trees import derm7pt_tree, table

CASES = (
    {"diagnosis": "melanoma (in situ)", "pigment_network": "atypical", "vascular_structures": "linear irregular"},
    {"diagnosis": "melanoma metastasis", "blue_whitish_veil": "present", "pigmentation": "localized irregular"},
    {"diagnosis": "blue nevus", "pigment_network": "typical", "vascular_structures": "comma", "case_id": "1204"},
    {"diagnosis": "basal cell carcinoma", "streaks": "regular", "regression_structures": "white areas"},
    {"diagnosis": "seborrheic keratosis", "streaks": "irregular", "dots_and_globules": "irregular", "case_id": "1204"},
    {"diagnosis": "lentigo", "pigment_network": "", "pigmentation": "diffuse regular"},
)
SPLITS = {"train": (0, 2, 5), "valid": (1, 3), "test": (4,)}
POINTS = [
    {"pigment_network", "vascular_structures"},
    {"blue_whitish_veil", "pigmentation"},
    set(),
    {"regression_structures"},
    {"streaks", "dots_and_globules"},
    set(),
]


def test_a_concept_is_a_criterion_that_scores_points(tmp_path: Path) -> None:
    derm7pt_tree(tmp_path, CASES, SPLITS)
    plan = read_derm7pt(tmp_path)
    assert len(plan.concepts) == 7
    labels = [dict(zip(plan.concepts, row.labels, strict=True)) for row in plan.rows]
    assert [{name for name, label in row.items() if label == 1} for row in labels] == POINTS
    unknown = [(n, name) for n, row in enumerate(labels) for name, label in row.items() if label == UNKNOWN]
    assert unknown == [(5, "pigment_network")]


def test_classes_are_groups_of_diagnoses_or_melanoma_against_all_else(tmp_path: Path) -> None:
    root = derm7pt_tree(tmp_path, CASES, SPLITS)
    plan = read_derm7pt(root)
    assert [row.class_name for row in plan.rows] == [
        "melanoma",
        "melanoma",
        "nevus",
        "basal cell carcinoma",
        "seborrheic keratosis",
        "miscellaneous",
    ]
    assert "2 classes without a training row: basal cell carcinoma, seborrheic keratosis." in plan.notes
    binary = read_derm7pt(root, diagnosis=Diagnosis.MELANOMA)
    assert binary.classes == ("other", "melanoma")
    assert [row.class_name for row in binary.rows] == ["melanoma"] * 2 + ["other"] * 4


def test_indexes_are_the_split_and_the_case_the_subject(tmp_path: Path) -> None:
    derm7pt_tree(tmp_path, CASES, SPLITS)
    plan = read_derm7pt(tmp_path)
    assert [row.split for row in plan.rows] == ["train", "calibration", "train", "calibration", "test", "train"]
    assert [row.key for row in plan.rows] == [f"case-{n}" for n in range(1, 7)]
    subjects = [row.subject for row in plan.rows]
    assert subjects[:2] == ["derm7pt:case-1", "derm7pt:case-2"]
    assert subjects[2] == subjects[4] == "derm7pt:id-1204"
    assert plan.rows[0].image == "NEL/nel001.jpg"
    assert (plan.root / plan.rows[0].image).is_file()


def test_what_is_missing_or_not_known_is_told(tmp_path: Path) -> None:
    root = derm7pt_tree(tmp_path, CASES, SPLITS)
    (root / "images" / "NEL" / "nel004.jpg").unlink()
    with pytest.raises(SourceProblem, match=r"1 of 6 images missing .*: NEL/nel004.jpg. They come with release_v0.zip"):
        read_derm7pt(tmp_path)
    (root / "meta" / "valid_indexes.csv").unlink()
    with pytest.raises(SourceProblem, match=r"meta/valid_indexes.csv is missing; it comes with release_v0.zip"):
        read_derm7pt(tmp_path)


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (("1",), "No file of indexes names 1 case: case-4"),
        (("1", "3", "4"), "Row 1 of .*test_indexes.csv puts a case into a second split"),
        (("1", "3", "6"), "Row 3 of .* is no position among the 6 cases"),
        (("1", "three"), "Row 2 of .* is no position among the 6 cases"),
    ],
)
def test_indexes_cover_every_case_once(tmp_path: Path, indexes: tuple[str, ...], message: str) -> None:
    root = derm7pt_tree(tmp_path, CASES, SPLITS)
    table(root / "meta" / "valid_indexes.csv", [{"indexes": index} for index in indexes])
    with pytest.raises(SourceProblem, match=message):
        read_derm7pt(tmp_path)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"diagnosis": "sunburn"}, "has diagnoses that are not known: sunburn"),
        ({"streaks": "many"}, "Row 3 of .* has a value of streaks that is not known: 'many'"),
    ],
)
def test_values_that_are_not_known(tmp_path: Path, case: dict[str, str], message: str) -> None:
    derm7pt_tree(tmp_path, ({}, {}, case), {"train": (0,), "valid": (1,), "test": (2,)})
    with pytest.raises(SourceProblem, match=message):
        read_derm7pt(tmp_path)
