"""CelebA: which attributes make the class, and annotations that do not fit together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.datasets.importers import SourceProblem
from app.datasets.importers.celeba import read_celeba
from tests.app.datasets.importers.trees import celeba_tree

N = 24
PARTS = "0" * 16 + "1" * 4 + "2" * 4
PEOPLE = [n // 2 + 2880 for n in range(N)]
SHARES = (8, 1, 7, 10, 2, 8, 9, 15, 6, 11, 0, 5)  # of 16 training rows, ones
NAMES = tuple(f"Attribute_{letter}" for letter in "ABCDEFGHIJKL")


def tree(root: Path) -> np.ndarray:
    """Attributes with these shares among training rows; all others rows have ones, which must not count."""
    labels = np.ones((N, len(NAMES)), np.int8)
    rng = np.random.default_rng(0)
    for column, ones in enumerate(SHARES):
        labels[:16, column] = rng.permutation([1] * ones + [0] * (16 - ones))
    celeba_tree(root, labels, NAMES, PEOPLE, PARTS)
    return labels


def test_the_most_balanced_attributes_make_the_class_and_the_others_are_concepts(tmp_path: Path) -> None:
    labels = tree(tmp_path)
    # Nearest to 8 of 16: A, F; C, G; D, I; J, L (both 3 off): eight. The others are off by more.
    targets = [NAMES.index(f"Attribute_{letter}") for letter in "ACDFGIJL"]
    others = [n for n in range(len(NAMES)) if n not in targets]
    plan = read_celeba(tmp_path)
    assert plan.concepts == tuple(NAMES[n] for n in others)
    assert [row.class_name for row in plan.rows] == ["".join(map(str, row)) for row in labels[:, targets]]
    assert plan.classes == tuple(sorted({row.class_name for row in plan.rows}))
    np.testing.assert_array_equal([list(row.labels) for row in plan.rows], labels[:, others])
    assert plan.notes[0] == (f"A class is the values of {', '.join(NAMES[n] for n in targets)}, as bits in this order.")


def test_the_partition_is_the_split_and_the_person_the_subject(tmp_path: Path) -> None:
    tree(tmp_path)
    plan = read_celeba(tmp_path)
    assert plan.counts == {"train": 16, "calibration": 4, "test": 4}
    assert [row.split for row in plan.rows] == [("train", "calibration", "test")[int(part)] for part in PARTS]
    assert [row.subject for row in plan.rows] == [f"celeba:{person}" for person in PEOPLE]
    assert (plan.rows[0].key, plan.rows[0].image) == ("000001", "000001.jpg")
    assert (plan.root / plan.rows[0].image).is_file()


def test_targets_may_be_chosen(tmp_path: Path) -> None:
    labels = tree(tmp_path)
    plan = read_celeba(tmp_path, targets=("Attribute_B", "Attribute_A"))
    assert plan.concepts == NAMES[2:]
    assert [row.class_name for row in plan.rows] == ["".join(map(str, row)) for row in labels[:, :2]]
    with pytest.raises(SourceProblem, match="1 attribute unknown: Beard"):
        read_celeba(tmp_path, targets=("Beard", "Attribute_A"))


def test_a_split_file_decides_which_rows_say_what_is_balanced(tmp_path: Path) -> None:
    tree(tmp_path)
    splits = {f"{n:06d}": "test" if n <= 16 else "train" for n in range(1, N + 1)}
    plan = read_celeba(tmp_path, splits=splits)
    assert plan.concepts == NAMES[8:]  # among the new training rows all are ones: the first columns win


def test_the_folders_of_the_download_are_known(tmp_path: Path) -> None:
    tree(tmp_path)
    expected = read_celeba(tmp_path).rows
    for name, folder in [
        ("img_align_celeba", "Img"),
        ("list_attr_celeba.txt", "Anno"),
        ("identity_CelebA.txt", "Anno"),
        ("list_eval_partition.txt", "Eval"),
    ]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / folder / name)
    assert read_celeba(tmp_path).rows == expected


def test_missing_files_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "identity_CelebA.txt").unlink()
    with pytest.raises(SourceProblem, match=r"identity_CelebA.txt is missing; it comes with the folder Anno"):
        read_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000007.jpg").unlink()
    (tmp_path / "identity_CelebA.txt").write_text("".join(f"{n:06d}.jpg 1\n" for n in range(1, N + 1)))
    with pytest.raises(SourceProblem, match=r"1 of 24 images missing .*: 000007.jpg. They come with Img/img_align"):
        read_celeba(tmp_path)


BROKEN = [
    ("list_attr_celeba.txt", -1, None, "announces 24 images and has 23"),
    ("list_attr_celeba.txt", 0, "images", "Line 1 of .* is not the number of images"),
    ("list_attr_celeba.txt", 3, "000002.jpg 1 -1", "Line 4 of .* has 2 values for 12 attributes"),
    ("list_attr_celeba.txt", 3, "000002.jpg 0" + " 1" * 11, "Line 4 of .* has a value other than -1 and 1"),
    ("list_eval_partition.txt", -1, None, "lacks 1 image of the attributes: 000024.jpg"),
    ("list_eval_partition.txt", 2, "000003.jpg 7", "has partitions 7"),
    ("identity_CelebA.txt", 2, None, "lacks 1 image of the attributes: 000003.jpg"),
]


@pytest.mark.parametrize(("name", "line", "text", "message"), BROKEN)
def test_files_that_are_cut_off_or_malformed(
    tmp_path: Path, name: str, line: int, text: str | None, message: str
) -> None:
    tree(tmp_path)
    path = tmp_path / name
    lines = path.read_text().splitlines()
    lines[line : line + 1 or None] = [] if text is None else [text]
    path.write_text("\n".join(lines))
    with pytest.raises(SourceProblem, match=message):
        read_celeba(tmp_path)
