"""From a downloaded directory to a registered data set, through the real service and its client."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from app.client import Stream
from app.datasets.importers import SourceProblem
from app.datasets.importers.archives import zip_of
from app.datasets.importers.cub import read_cub
from app.datasets.importers.splits import read_split_file
from app.datasets.importers.writing import read_mask, read_votes, votes_parquet, write_plan
from app.datasets.snapshots import Snapshot
from app.datasets.votes import ballots, class_labels, tally
from tests.app.datasets.importers.trees import CUB_ATTRIBUTES, SPECIES, Vote, cub_tree, cub_vote
from tests.app.service import Service
from tests.app.test_client import client_of


def noisy(species: int, number: int, attribute: int) -> Vote:
    """As most images say, but one in five says otherwise."""
    label, certainty = cub_vote(species, number, attribute)
    return (1 - label if (number + attribute) % 5 == 0 else label), certainty


def test_a_cub_directory_becomes_a_data_set(service: Service, tmp_path: Path) -> None:
    cub_tree(tmp_path, noisy)
    plan = read_cub(tmp_path, min_classes=1)
    images = [row.image for row in plan.rows]
    with client_of(service) as client:
        archive = Stream("images.zip", lambda: zip_of(plan.root, images))
        assert plan.votes is not None
        votes = votes_parquet(plan, plan.votes)
        dataset = client.register_dataset(plan.definition("birds"), plan.manifest(), archive, votes=votes)
        assert dataset.vote_rule == {"rule": "majority", "min_classes": 1}
        assert dataset.id == "birds"
        assert dataset.title == "CUB-200-2011"
        assert dataset.concepts == [CUB_ATTRIBUTES[index] for index in (0, 1, 3)]
        assert dataset.classes == list(SPECIES)
        assert dataset.counts == plan.counts
        assert dataset.unreferenced_images == 0
        for row, sample in zip(plan.rows, client.samples("birds"), strict=True):
            assert (sample.key, sample.split, sample.class_) == (row.key, row.split, row.class_name)
            assert sample.concepts == dict(zip(plan.concepts, row.labels, strict=True))
            assert sample.votes is not None
            assert sample.votes.keys() == sample.concepts.keys()
        row = plan.rows[17]
        assert client.image("birds", row.key) == (plan.root / row.image).read_bytes()
    snapshot = Snapshot.load(service.store.fetch(dataset.snapshot_sha256))
    assert snapshot.counts == plan.counts

    # What was registered is what the training rows' votes say, and the votes are there.
    trained = snapshot.rows("train")
    kept = [plan.votes.attributes.index(name) for name in dataset.concepts]
    labels = class_labels(tally(plan.votes.votes[trained], snapshot.classes[trained], len(SPECIES)))
    np.testing.assert_array_equal(labels[:, kept][snapshot.classes], snapshot.concepts)
    assert snapshot.votes is not None
    np.testing.assert_array_equal(snapshot.votes, ballots(plan.votes.votes[:, kept]))


def test_sending_the_same_archive_again_is_the_same_request(service: Service, tmp_path: Path) -> None:
    cub_tree(tmp_path)
    plan = read_cub(tmp_path, min_classes=1)
    archive = Stream("images.zip", lambda: zip_of(plan.root, [row.image for row in plan.rows]))
    assert plan.votes is not None
    votes = votes_parquet(plan, plan.votes)
    with client_of(service) as client:
        answers = [
            client.register_dataset(plan.definition(), plan.manifest(), archive, votes=votes, idempotency_key="birds")
            for _ in range(2)
        ]
        assert answers[0] == answers[1]
        assert [dataset.id for dataset in client.datasets()] == [answers[0].id]


def test_a_plan_as_files_leads_to_the_same_plan(tmp_path: Path) -> None:
    cub_tree(tmp_path / "source", noisy)
    plan = read_cub(tmp_path / "source", min_classes=2)
    files = {file.name: file for file in write_plan(plan, tmp_path / "out", dataset_id="birds", title="Birds")}
    assert set(files) == {"definition.json", "manifest.csv", "splits.csv", "mask.txt", "votes.parquet"}
    definition = json.loads(files["definition.json"].read_bytes())
    assert (definition["id"], definition["title"], definition["concepts"]) == ("birds", "Birds", list(plan.concepts))
    rows = list(csv.DictReader(io.StringIO(files["manifest.csv"].read_text())))
    assert [row["key"] for row in rows] == [row.key for row in plan.rows]

    again = read_cub(
        tmp_path / "source", splits=read_split_file(files["splits.csv"]), mask=read_mask(files["mask.txt"])
    )
    assert (again.rows, again.concepts) == (plan.rows, plan.concepts)
    keys, book = read_votes(files["votes.parquet"])
    assert plan.votes is not None
    assert (keys, book.attributes) == ([row.key for row in plan.rows], plan.votes.attributes)
    np.testing.assert_array_equal(book.votes, plan.votes.votes)


def test_masks_and_votes_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "mask.txt").write_text("# no attribute\n\n")
    for name in ("mask.txt", "absent.txt"):
        with pytest.raises(SourceProblem, match=f"There is no file .*{name}, or no attribute in it"):
            read_mask(tmp_path / name)
