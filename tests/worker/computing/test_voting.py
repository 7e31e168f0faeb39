"""Edits where classes vote on labels: corrected votes turn a race, and the model learns what then wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import UNKNOWN, Snapshot, SnapshotChanges
from tests.worker.computing.scene import BRIEF, CLASSES, CONCEPTS, DATASET, ROWS, Scene, World, image_of, version
from tests.worker.threads import single_thread
from worker.resolution import changes_between
from worker.tasks import Result

LOOKS = np.array([[0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0]], np.int8)  # of each class
RULE = {"rule": "majority", "min_classes": 2}
TOLERANT: dict[str, Any] = {"tolerance": {"concept_f1": 0.2, "label_f1": 0.2}}


@pytest.fixture(scope="session")
def voted(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Images of a class look alike. One in five votes is wrong, and one in twenty is none. For class 0, the first
    concept won by two wrong votes: its label is what none of its images show."""
    random = np.random.default_rng(3)
    n = sum(ROWS.values())
    classes = (np.arange(n) % len(CLASSES)).astype(np.int32)
    truth = LOOKS[classes]
    votes = np.where(random.random(truth.shape) < 0.2, 1 - truth, truth)
    votes = np.where(random.random(truth.shape) < 0.05, UNKNOWN, votes).astype(np.int8)
    ids = np.arange(10, 10 + n, dtype=np.int64)
    splits = np.repeat(np.arange(3, dtype=np.int8), list(ROWS.values()))
    members = np.flatnonzero((classes == 0) & (splits == 0))
    votes[members, 0] = np.arange(len(members)) > len(members) // 2 - 2  # two votes more for it than against it
    store = LocalArtifactStore(Path(tmp_path_factory.mktemp("voted")))
    images = {int(i): image_of(row, random) for i, row in zip(ids, truth, strict=True)}
    store.put_images(DATASET, images)
    snapshot = Snapshot.by_vote(ids, splits, classes, votes)
    store.put(snapshot.to_bytes())
    with single_thread():
        return World.of(Scene(store, snapshot, truth))


def correction(world: World) -> SnapshotChanges:
    """Of votes of class 0 for the concept that none of its images show."""
    snapshot = world.scene.snapshot
    assert snapshot.votes is not None
    wrong = np.flatnonzero((snapshot.classes == 0) & (snapshot.splits == 0) & (snapshot.votes[:, 0] == 1))
    return SnapshotChanges(fixes=tuple((int(snapshot.sample_ids[row]), 0, 0) for row in wrong[:3]))


def edited(world: World, changes: SnapshotChanges, **options: Any) -> Result:
    task = world.scene.task(
        "edit", base=world.base, changes=changes.to_json(), options=TOLERANT | options, vote_rule=RULE
    )
    return world.scene.run(task)


def test_three_votes_change_the_label_of_a_class(voted: World) -> None:
    changes = correction(voted)
    result = edited(voted, changes)
    before, after = voted.scene.snapshot, voted.snapshot(result)
    members = before.classes == 0
    assert (before.concepts[members, 0] == 1).all()
    assert (after.concepts[members, 0] == 0).all()
    np.testing.assert_array_equal(after.concepts[~members], before.concepts[~members])
    assert result.report["votes"] == {
        "labels_changed": int(members.sum()),
        "flips": 1,
        "flipped": [{"class": "none", "concept": "top left", "label": 0, "rows": int(members.sum())}],
        "concepts_below_minimum": [],  # the other two classes have it
    }
    group = result.report["edited_rows"]["fixed"]
    assert group["rows"] == int((members & (before.splits == 0)).sum())
    assert group["loss_after"] < 0.5 * group["loss_before"]
    # Test labels turn too, so that the score says whether the model tells what is there now: a row in 60 is 0.02.
    assert result.metrics["concepts"]["top left"]["f1"] > 0.9


def test_the_next_edit_counts_from_what_this_one_left(voted: World) -> None:
    """Back to where it was, by training if one step does not lead there: the data are the same."""
    child = version(edited(voted, correction(voted)), 2)
    back = SnapshotChanges(fixes=tuple((row, column, 1) for row, column, _ in correction(voted).fixes))
    options = TOLERANT | {"on_failure": "retrain"}
    task = voted.scene.task("edit", base=child, changes=back.to_json(), options=options, vote_rule=RULE)
    result = voted.scene.run(task)
    assert voted.snapshot(result) == voted.scene.snapshot
    assert result.report["votes"]["flipped"][0]["label"] == 1


def test_concepts_that_too_few_classes_have_are_named_and_kept(voted: World) -> None:
    """Where every class that has a concept now must have it."""
    snapshot = voted.scene.snapshot
    rule = {**RULE, "min_classes": int(snapshot.concepts[:, 0][[0, 1, 2]].sum())}
    task = voted.scene.task(
        "edit", base=voted.base, changes=correction(voted).to_json(), options=TOLERANT, vote_rule=rule
    )
    result = voted.scene.run(task)
    assert result.report["votes"]["concepts_below_minimum"] == ["top left"]
    assert result.concepts == CONCEPTS


def test_votes_that_turn_nothing_leave_the_model_s_concepts_as_they_are(voted: World) -> None:
    changes = SnapshotChanges(fixes=correction(voted).fixes[:1])
    result = edited(voted, changes)
    assert result.report["votes"]["flips"] == 0
    assert result.report["edited_rows"] == {}
    assert result.snapshot_digest == voted.scene.snapshot.apply(changes).digest
    assert result.snapshot_digest != voted.scene.snapshot.digest


def test_a_retraining_finds_the_votes_that_an_edit_changed(voted: World) -> None:
    changes = correction(voted)
    result = edited(voted, changes)
    found = changes_between(voted.scene.snapshot, voted.snapshot(result), list(range(4)))
    assert found == changes
    child = version(result, 2)
    compared = {"base": voted.base, "edited": child, "changes": found.to_json(), "report": result.report}
    reference = voted.scene.run(voted.scene.task("retrain", base=child, compared=compared, training=BRIEF))
    rows = reference.report["comparison"]["rows"]["fixed"]
    assert rows["rows"] == result.report["edited_rows"]["fixed"]["rows"]
    assert rows["loss_before"] == pytest.approx(result.report["edited_rows"]["fixed"]["loss_before"], rel=1e-5)
