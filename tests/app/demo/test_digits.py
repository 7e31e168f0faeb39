from __future__ import annotations

import csv
import io
import itertools
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from app.demo import digits


@pytest.fixture(scope="module")
def data() -> digits.Digits:
    return digits.load()


def test_any_two_digits_differ_in_two_concepts_so_that_one_may_be_dropped() -> None:
    vectors = np.array([[digit in found for found in digits.DIGITS_WITH.values()] for digit in range(10)])
    distances = [int((vectors[a] != vectors[b]).sum()) for a, b in itertools.combinations(range(10), 2)]
    assert min(distances) >= 2


def test_every_concept_is_in_some_digits_and_not_in_others() -> None:
    assert all(2 <= len(found) <= 8 for found in digits.DIGITS_WITH.values())


def test_the_table_in_the_documentation_is_the_table_in_the_code() -> None:
    assert digits.__doc__ is not None
    header = "concept                   "
    lines = {
        line[:26].strip(): line[26:] for line in digits.__doc__.splitlines() if line[:26].strip() in digits.CONCEPTS
    }
    documented = {
        name: frozenset(digit for digit in range(10) if marks.ljust(20)[2 * digit] == "x")
        for name, marks in lines.items()
    }
    assert f"{header}0 1 2 3 4 5 6 7 8 9" in digits.__doc__
    assert documented == digits.DIGITS_WITH


def test_all_digits_are_there_once(data: digits.Digits) -> None:
    keys = [row.key for row in (*data.rows, *data.held_back)]
    assert len(set(keys)) == len(keys) == 1797


def test_splits_have_their_shares(data: digits.Digits) -> None:
    counts = Counter(row.split for row in data.rows)
    train = counts["train"] + len(data.held_back)
    # Shares are rounded class by class.
    assert train == pytest.approx(0.60 * 1797, abs=10)
    assert counts["calibration"] == pytest.approx(0.20 * 1797, abs=10)
    assert counts["test"] == pytest.approx(0.20 * 1797, abs=10)
    assert len(data.held_back) == pytest.approx(0.10 * train, abs=10)
    assert {row.split for row in data.held_back} == {"train"}


def test_every_split_has_every_class(data: digits.Digits) -> None:
    for split in ("train", "calibration", "test"):
        assert {row.digit for row in data.rows if row.split == split} == set(digits.CLASSES)


def test_every_split_has_the_same_share_of_each_class(data: digits.Digits) -> None:
    for digit in digits.CLASSES:
        counts = Counter(row.split for row in (*data.rows, *data.held_back) if row.digit == digit)
        total = sum(counts.values())
        assert counts["train"] == pytest.approx(0.60 * total, abs=1)
        assert counts["calibration"] == pytest.approx(0.20 * total, abs=1)


def test_a_subject_has_a_few_rows(data: digits.Digits) -> None:
    counts = Counter(row.subject for row in (*data.rows, *data.held_back))
    assert set(counts.values()) == {5, 2}  # 1,797 = 359 · 5 + 2


def test_a_subject_has_rows_of_several_classes(data: digits.Digits) -> None:
    classes: dict[str, set[str]] = {}
    for row in data.rows:
        classes.setdefault(row.subject, set()).add(row.digit)
    assert np.mean([len(found) for found in classes.values()]) > 3


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_splits(data: digits.Digits) -> None:
    again = digits.load()
    assert digits.manifest(again.rows) == digits.manifest(data.rows)
    assert digits.archive(again.rows) == digits.archive(data.rows)
    assert digits.manifest(digits.load(seed=1).rows) != digits.manifest(data.rows)


def test_images_are_the_data_sets_without_loss(data: digits.Digits) -> None:
    original = load_digits()
    archive = zipfile.ZipFile(io.BytesIO(digits.archive(data.rows)))
    for row in data.rows[::50]:
        number = int(row.key.removeprefix("digit-"))
        with Image.open(io.BytesIO(archive.read(row.image))) as image:
            assert image.mode == "L"
            pixels = np.asarray(image, np.float64)
        assert np.array_equal(np.rint(pixels * 16 / 255), original.images[number])
        assert row.digit == str(original.target[number])


def test_the_manifest_says_what_the_rows_say(data: digits.Digits) -> None:
    read = list(csv.DictReader(io.StringIO(digits.manifest(data.rows).decode())))
    assert len(read) == len(data.rows)
    for row, cells in zip(data.rows, read, strict=True):
        assert {name: int(cells[name]) for name in digits.CONCEPTS} == row.concepts
        assert (cells["key"], cells["split"], cells["class"], cells["subject"]) == (
            row.key,
            row.split,
            row.digit,
            row.subject,
        )


def test_planted_labels_are_wrong_in_one_concept_of_five_percent_of_the_training_rows(data: digits.Digits) -> None:
    rows, planted = digits.plant_wrong_labels(data.rows, 0.05, seed=3)
    train = sum(row.split == "train" for row in data.rows)
    assert len(planted) == round(0.05 * train) == len({label.key for label in planted})
    wrong = {
        (after.key, name, before.concepts[name])
        for before, after in zip(data.rows, rows, strict=True)
        for name in digits.CONCEPTS
        if before.concepts[name] != after.concepts[name]
    }
    assert wrong == {(label.key, label.concept, label.right) for label in planted}
    assert {row.split for row in rows if row.key in {label.key for label in planted}} == {"train"}


def test_planting_is_the_same_for_the_same_seed_and_leaves_its_input_alone(data: digits.Digits) -> None:
    before = digits.manifest(data.rows)
    assert digits.plant_wrong_labels(data.rows, seed=1) == digits.plant_wrong_labels(data.rows, seed=1)
    assert digits.plant_wrong_labels(data.rows, seed=1)[1] != digits.plant_wrong_labels(data.rows, seed=2)[1]
    assert digits.manifest(data.rows) == before
