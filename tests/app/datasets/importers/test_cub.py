"""CUB-200-2011: votes, the filter of concepts, splits, and downloads that are not whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.datasets import votes as voting
from app.datasets.importers import ImportPlan, SourceProblem
from app.datasets.importers.cub import read_cub
from app.datasets.importers.splits import is_calibration
from tests.app.datasets.importers.trees import (
    CUB_ATTRIBUTES,
    IMAGES_PER_SPECIES,
    OFFICIALLY_TRAINING,
    SPECIES,
    Vote,
    cub_images,
    cub_tree,
    cub_vote,
)


def labels_of(plan: ImportPlan, species: int) -> dict[str, int]:
    """Labels of a species; all of its rows have the same."""
    found = {tuple(row.labels) for row in plan.rows if row.class_name == SPECIES[species]}
    assert len(found) == 1
    return dict(zip(plan.concepts, found.pop(), strict=True))


def test_rows_are_the_images_with_their_classes_and_class_level_concepts(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, min_classes=1)
    assert plan.classes == SPECIES
    assert plan.concepts == tuple(CUB_ATTRIBUTES[index] for index in (0, 1, 3))
    assert [row.image for row in plan.rows] == [path for _, path in cub_images()]
    assert [row.class_name for row in plan.rows] == [SPECIES[species] for species, _ in cub_images()]
    assert plan.rows[0].key == "Black_footed_Albatross_0000_7961"
    assert [tuple(labels_of(plan, species).values()) for species in range(3)] == [(1, 1, 1), (1, 0, 1), (1, 0, 0)]
    assert all(row.subject is None for row in plan.rows)


def test_both_the_archives_top_and_the_directory_in_it_are_read(tmp_path: Path) -> None:
    root = cub_tree(tmp_path)
    inside = read_cub(root, min_classes=1)
    assert inside == read_cub(tmp_path, min_classes=1)
    (tmp_path / "attributes.txt").rename(root / "attributes" / "attributes.txt")
    assert inside == read_cub(root, min_classes=1)


def test_the_official_split_with_calibration_rows_by_hash_of_the_file_name(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, min_classes=1)
    for number, row in enumerate(plan.rows):
        if number % IMAGES_PER_SPECIES >= OFFICIALLY_TRAINING:
            assert row.split == "test"
        else:
            assert row.split == ("calibration" if is_calibration(Path(row.image).name) else "train")
    assert min(plan.counts.values()) > 0


def test_a_split_file_replaces_the_official_split_and_moves_the_votes(tmp_path: Path) -> None:
    def only_the_last_is_blue(species: int, number: int, attribute: int) -> Vote:
        return (int(number == IMAGES_PER_SPECIES - 1), 4) if attribute == 1 else cub_vote(species, number, attribute)

    cub_tree(tmp_path, only_the_last_is_blue)
    assert CUB_ATTRIBUTES[1] not in read_cub(tmp_path, min_classes=1).concepts  # it is a test image: no vote
    keys = [row.key for row in read_cub(tmp_path, min_classes=1).rows]
    splits = {
        key: "train" if n % IMAGES_PER_SPECIES == IMAGES_PER_SPECIES - 1 else "test" for n, key in enumerate(keys)
    }
    plan = read_cub(tmp_path, splits=splits, min_classes=1)
    assert {row.key: row.split for row in plan.rows} == splits
    assert CUB_ATTRIBUTES[1] in plan.concepts
    assert "The split calibration has no rows." in plan.notes
    del splits[keys[3]]
    with pytest.raises(SourceProblem, match=f"lacks 1 key: {keys[3]}"):
        read_cub(tmp_path, splits=splits)


def test_invisible_is_no_vote_ties_are_ones_and_only_training_images_vote(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    training = [n for n, row in enumerate(read_cub(tmp_path, min_classes=1).rows) if row.split == "train"]
    first = [n for n in training if n < IMAGES_PER_SPECIES]

    def vote(species: int, number: int, attribute: int) -> Vote:
        if species:
            return (0, 3)
        if attribute == 0:  # one visible "yes" against many "not visible"
            return (1, 2) if number == first[0] else (0, 1)
        if attribute == 1:  # one against one: a tie
            return {first[0]: (1, 4), first[1]: (0, 4)}.get(number, (0, 1))
        if attribute == 2:  # nobody can see it: a tie of no votes
            return (0, 1)
        return (0, 4) if number in first else (1, 4)  # yes say only those that have no vote

    cub_tree(tmp_path, vote)
    plan = read_cub(tmp_path, min_classes=0)
    assert list(labels_of(plan, 0).values()) == [1, 1, 1, 0]
    assert "2 ties of votes count as 1, 1 of them of no votes at all." in plan.notes


def test_concepts_are_the_attributes_that_enough_classes_have(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    for at_least, kept in [(1, (0, 1, 3)), (2, (0, 3)), (3, (0,))]:
        assert read_cub(tmp_path, min_classes=at_least).concepts == tuple(CUB_ATTRIBUTES[i] for i in kept)
    with pytest.raises(SourceProblem, match="There is no concept left"):
        read_cub(tmp_path)  # ten classes are asked for by default


def test_a_mask_names_the_concepts_by_number_or_name(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, mask=frozenset({"3", CUB_ATTRIBUTES[0]}))
    assert plan.concepts == (CUB_ATTRIBUTES[0], CUB_ATTRIBUTES[2])
    with pytest.raises(SourceProblem, match="2 attributes unknown: 99, wings"):
        read_cub(tmp_path, mask=frozenset({"3", "99", "wings"}))


def test_lines_with_a_column_too_many_are_read_and_counted(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, min_classes=1)
    assert "1 line of image_attribute_labels.txt had more than five columns; the first four count." in plan.notes
    assert plan.votes is not None
    assert plan.votes.votes[4, 1] == voting.encode_votes(np.array([1]), np.array([4]))[0]


def test_the_votes_of_single_images_are_kept(tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, min_classes=1)
    assert plan.votes is not None
    assert plan.votes.attributes == CUB_ATTRIBUTES
    expected = [
        [cub_vote(species, n % IMAGES_PER_SPECIES, attribute) for attribute in range(len(CUB_ATTRIBUTES))]
        for n, (species, _) in enumerate(cub_images())
    ]
    found = np.stack([voting.vote_labels(plan.votes.votes), voting.vote_certainties(plan.votes.votes)], axis=2)
    np.testing.assert_array_equal(found, expected)


def test_all_files_that_are_missing_are_named_with_their_places_and_archive(tmp_path: Path) -> None:
    root = cub_tree(tmp_path)
    (root / "classes.txt").unlink()
    (tmp_path / "attributes.txt").unlink()
    with pytest.raises(SourceProblem) as failure:
        read_cub(tmp_path)
    attributes, classes = failure.value.findings
    assert f"{root / 'classes.txt'} is missing; it comes with CUB_200_2011.tgz" in classes
    for place in (root / "attributes" / "attributes.txt", tmp_path / "attributes.txt"):
        assert str(place) in attributes
    assert "beside the directory CUB_200_2011" in attributes


def test_missing_images_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    root = cub_tree(tmp_path)
    gone = [path for _, path in cub_images()][3:10]
    for path in gone:
        (root / "images" / path).unlink()
    with pytest.raises(SourceProblem, match="7 of 36 images missing below") as failure:
        read_cub(tmp_path)
    message = str(failure.value)
    assert all(path in message for path in gone[:5])
    assert not any(path in message for path in gone[5:])


BROKEN = [
    ("attributes/image_attribute_labels.txt", -1, None, "143 of 144 labels; 1 image incomplete: 003.Sooty"),
    ("attributes/image_attribute_labels.txt", 6, "2 3 1", r"Line 7 of .* is not: image, attribute"),
    ("attributes/image_attribute_labels.txt", 6, "2 3 1 5 1.0", r"Line 7 of .* is not: image, attribute"),
    ("attributes/image_attribute_labels.txt", 6, "2 9 1 4 1.0", r"Line 7 of .* is not: image, attribute"),
    ("image_class_labels.txt", -1, None, "lacks 1 image of images.txt: 003.Sooty"),
    ("image_class_labels.txt", 0, "1 4", "Line 1 of .* has a value that is not known"),
    ("train_test_split.txt", 0, "1 2", "Line 1 of .* has a value that is not known"),
    ("train_test_split.txt", 0, "77 1", "Line 1 of .* names an image that images.txt lacks"),
    ("images.txt", 1, "1 a/b.jpg", "Line 2 of .* repeats an earlier number"),
    ("images.txt", 1, "2", "Line 2 of .* has one field instead of two"),
]


@pytest.mark.parametrize(("name", "line", "text", "message"), BROKEN)
def test_a_file_that_is_cut_off_or_malformed_is_told_by_line(
    tmp_path: Path, name: str, line: int, text: str | None, message: str
) -> None:
    path = cub_tree(tmp_path) / name
    lines = path.read_text().splitlines()
    lines[line : line + 1 or None] = [] if text is None else [text]
    path.write_text("\n".join(lines))
    with pytest.raises(SourceProblem, match=message):
        read_cub(tmp_path)


def test_what_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "CUB_200_2011.tgz").write_bytes(b"")
    with pytest.raises(SourceProblem, match=r"is not a directory\. Unpack the archive first"):
        read_cub(tmp_path / "CUB_200_2011.tgz")
