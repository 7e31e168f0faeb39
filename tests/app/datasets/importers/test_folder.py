"""A folder per class, with and without a table of concepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.datasets.importers import SourceProblem
from app.datasets.importers.folder import read_folder
from app.datasets.importers.splits import three_way
from app.datasets.snapshots import UNKNOWN
from tests.app.datasets.importers.trees import table, write_images

IMAGES = ("disc/1.png", "disc/more/2.PNG", "box/1.png", "box/3.jpg")


def tree(root: Path) -> Path:
    write_images(root, IMAGES, "PNG")
    (root / "disc" / "notes.txt").write_text("no image")
    (root / "readme.png").write_text("in no folder")
    return root


def rows(**changed: str) -> list[dict[str, str]]:
    cells = {"image": "disc/1.png", "round": "1", "dark, very": "0", "subject": "s-1", "split": "val", **changed}
    other = {"image": "box/3.jpg", "round": "0", "dark, very": "unknown", "subject": "", "split": ""}
    return [cells, other]


def test_folders_are_classes_and_without_a_table_concepts_too(tmp_path: Path) -> None:
    plan = read_folder(tree(tmp_path))
    assert [(row.key, row.class_name, row.image) for row in plan.rows] == [
        ("box:1", "box", "box/1.png"),
        ("box:3", "box", "box/3.jpg"),
        ("disc:1", "disc", "disc/1.png"),
        ("disc:more:2", "disc", "disc/more/2.PNG"),
    ]
    assert plan.concepts == plan.classes == ("box", "disc")
    assert [row.labels for row in plan.rows] == [(1, 0), (1, 0), (0, 1), (0, 1)]
    assert [row.split for row in plan.rows] == [three_way(row.key) for row in plan.rows]


def test_a_table_gives_concepts_splits_and_subjects(tmp_path: Path) -> None:
    table(tmp_path / "concepts.csv", rows())
    plan = read_folder(tree(tmp_path / "images"), tmp_path / "concepts.csv")
    assert plan.concepts == ("round", "dark, very")
    labels = {row.image: tuple(row.labels) for row in plan.rows}
    assert labels == {
        "disc/1.png": (1, 0),
        "box/3.jpg": (0, UNKNOWN),
        "box/1.png": (UNKNOWN, UNKNOWN),
        "disc/more/2.PNG": (UNKNOWN, UNKNOWN),
    }
    by_image = {row.image: row for row in plan.rows}
    assert (by_image["disc/1.png"].split, by_image["disc/1.png"].subject) == ("calibration", "s-1")
    assert (by_image["box/3.jpg"].split, by_image["box/3.jpg"].subject) == (three_way("box:3"), None)
    assert "2 images without labels in the table: box/1.png, disc/more/2.PNG." in plan.notes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image": "disc/9.png"}, "1 image of .* not below .*: disc/9.png"),
        ({"image": "box/3.jpg"}, "Row 2 of .* names an image again"),
        ({"round": "yes"}, "Row 1 of .* has labels other than 0, 1 and unknown: round"),
        ({"split": "blue"}, "Row 1 of .* has a split other than"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    table(tmp_path / "concepts.csv", rows(**changed))
    with pytest.raises(SourceProblem, match=message):
        read_folder(tree(tmp_path / "images"), tmp_path / "concepts.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"image,round\ndisc/1.png,1,0\n", "Row 1 of .* has 3 cells, the header 2"),
        (b"", "is empty: the first line names the columns"),
        (b"image,round,round\n", "has columns twice: round"),
        (b"picture,round\n", "lacks: image. Its columns are: picture, round"),
        (b"image,round\n\xff,1\n", "is not text in UTF-8"),
        (b'image,round\n"disc/1.png"x,1\n', "is not CSV"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "concepts.csv").write_bytes(content)
    with pytest.raises(SourceProblem, match=message):
        read_folder(tree(tmp_path / "images"), tmp_path / "concepts.csv")


def test_directories_without_classes(tmp_path: Path) -> None:
    write_images(tmp_path, ["1.png"], "PNG")
    with pytest.raises(SourceProblem, match="has no folders with images"):
        read_folder(tmp_path)
    write_images(tmp_path, ["disc/1.png"], "PNG")
    with pytest.raises(SourceProblem, match="It has 1 class; a model needs at least two"):
        read_folder(tmp_path)
