"""OAI-style tables: grades made binary, persons that stay together, cells that are not as expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.datasets.importers import SourceProblem
from app.datasets.importers.layouts import Choices, Layout, columns_of, read_layout
from app.datasets.importers.splits import three_way
from app.datasets.importers.tables import OAI_CONCEPTS, Columns, read_table
from app.datasets.snapshots import UNKNOWN
from tests.app.datasets.importers.trees import table, write_images

GRADES = ("0", "1", "2.0", "3", "0.5", "", ".", ".A", "nan", "1")


def rows() -> list[dict[str, str]]:
    return [
        {
            "id": str(9000001 + n // 2),
            "image": f"knees/{n}.png",
            "xrkl": ("0", "1.0", "2", "3")[n % 4],
            "fold": ("train", "val", "Test")[n % 3],
            **dict.fromkeys(OAI_CONCEPTS, grade),
        }
        for n, grade in enumerate(GRADES)
    ]


def tree(root: Path, changed: list[dict[str, str]] | None = None) -> Path:
    write_images(root, (row["image"] for row in rows()), "PNG")
    table(root / "labels.csv", changed or rows())
    return root


def test_a_concept_is_a_grade_that_reaches_the_threshold(tmp_path: Path) -> None:
    plan = read_table(tree(tmp_path), tmp_path / "labels.csv", Columns(thresholds={"xrjsm": 2.0, "xrjsl": 0.5}))
    assert plan.concepts == OAI_CONCEPTS
    assert len(plan.concepts) == 10
    unknown = [UNKNOWN] * 4
    by_concept = dict(zip(plan.concepts, zip(*(row.labels for row in plan.rows), strict=True), strict=True))
    assert list(by_concept["xrosfm"]) == [0, 1, 1, 1, 0, *unknown, 1]
    assert list(by_concept["xrjsm"]) == [0, 0, 1, 1, 0, *unknown, 0]
    assert list(by_concept["xrjsl"]) == [0, 1, 1, 1, 1, *unknown, 1]
    assert "xrjsm is 1 from grade 2 on." in plan.notes


def test_classes_lose_the_decimals_of_dataframes_and_may_be_merged(tmp_path: Path) -> None:
    path = tree(tmp_path) / "labels.csv"
    assert read_table(tmp_path, path, Columns()).classes == ("0", "1", "2", "3")
    merged = read_table(tmp_path, path, Columns(merged=(("0", "1"),)))
    assert merged.classes == ("0-1", "2", "3")
    assert [row.class_name for row in merged.rows][:4] == ["0-1", "0-1", "2", "3"]


def test_without_a_split_column_a_person_is_in_one_split(tmp_path: Path) -> None:
    path = tree(tmp_path) / "labels.csv"
    plan = read_table(tmp_path, path, Columns())
    assert [row.split for row in plan.rows] == [three_way(row.subject or "") for row in plan.rows]
    assert len({(row.subject, row.split) for row in plan.rows}) == len(rows()) // 2
    given = read_table(tmp_path, path, Columns(split="fold"))
    assert [row.split for row in given.rows][:4] == ["train", "calibration", "test", "train"]
    alone = read_table(tmp_path, path, Columns(subject=None))
    assert [row.split for row in alone.rows] == [three_way(row.key) for row in alone.rows]


def test_keys_come_from_paths(tmp_path: Path) -> None:
    assert read_table(tree(tmp_path), tmp_path / "labels.csv", Columns()).rows[0].key == "knees:0"


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("xrosfm", "severe", "Row 1 of .* has no number in the column xrosfm: 'severe'"),
        ("xrosfm", "inf", "Row 1 of .* has no number in the column xrosfm"),
        ("xrkl", "", "1 row of .* without xrkl: 1"),
        ("fold", "blue", "Row 1 of .* has a split other than"),
        ("image", "knees/77.png", "1 of 10 images missing below .*: knees/77.png"),
        ("image", "knees/1.png", "1 key would name several rows: knees:1"),
    ],
)
def test_cells_that_are_not_as_expected(tmp_path: Path, column: str, value: str, message: str) -> None:
    changed = rows()
    changed[0][column] = value
    tree(tmp_path, changed)
    with pytest.raises(SourceProblem, match=message):
        read_table(tmp_path, tmp_path / "labels.csv", Columns(split="fold"))


def test_columns_that_are_missing_are_named_beside_those_there(tmp_path: Path) -> None:
    tree(tmp_path, [{"id": "1", "image": "knees/0.png", "xrkl": "0"}])
    with pytest.raises(SourceProblem, match=r"lacks: xrosfm, xrscfm, .*, …. Its columns are: id, image, xrkl"):
        read_table(tmp_path, tmp_path / "labels.csv", Columns())
    with pytest.raises(SourceProblem, match="There is no table"):
        read_table(tmp_path, tmp_path / "absent.csv", Columns())


def test_the_columns_of_ones_own_table(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png"], "PNG")
    table(tmp_path / "mine.csv", [{"file": f"{n}.png", "kind": n, "rust": "2", "dent": "3"} for n in "ab"])
    plan = read_layout(
        Layout.OAI,
        tmp_path,
        Choices(
            table=tmp_path / "mine.csv",
            image_column="file",
            class_column="kind",
            concepts=("rust", "dent"),
            subject_column="",
            thresholds=("3", "rust=2"),
        ),
    )
    assert (plan.concepts, plan.classes) == (("rust", "dent"), ("a", "b"))
    assert [row.labels for row in plan.rows] == [(1, 1), (1, 1)]
    assert [row.subject for row in plan.rows] == [None, None]
    for wrong, message in [("rust=much", "'rust=much' is neither 2 nor CONCEPT=2"), ("", "'' is neither")]:
        with pytest.raises(SourceProblem, match=message):
            columns_of(Choices(thresholds=(wrong,)))
    with pytest.raises(SourceProblem, match="These are no concepts: paint"):
        read_table(tmp_path, tmp_path / "mine.csv", Columns(thresholds={"paint": 1.0}))


def test_choices_of_another_layout_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceProblem, match="The layout celeba has no --mask, --merge, --threshold"):
        read_layout(
            Layout.CELEBA, tmp_path, Choices(mask=tmp_path, thresholds=("1",), merged=(("0", "1"),), targets=("A",))
        )
