"""Insights as jobs: what they say of a small world whose wrong labels are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from app.datasets.snapshots import UNKNOWN, SnapshotChanges
from tests.worker.computing.scene import CLASSES, CONCEPTS, TOLERANT, TRAINING, World, version
from tests.worker.threads import single_thread
from worker.cbm.label_predictor import fit_label_predictor
from worker.cbm.training import predict_logits
from worker.tasks import BaseVersion, Result, TaskFailure

ALL = ["concept_importance", "influential_labels", "suspected_labels"]


def look(world: World, *kinds: str, **given: Any) -> Result:
    options = {"kinds": list(kinds), "top": given.pop("top", 200), "sample_id": given.pop("sample_id", None)}
    return world.scene.run(world.scene.task("insight", **{"base": world.base, "options": options, **given}))


@pytest.fixture(scope="session")
def found(world: World) -> dict[str, Any]:
    with single_thread():
        result = look(world, *ALL)
    assert not result.publishes
    assert (result.snapshot_digest, result.weights_digest, result.factors_digest) == (None, None, None)
    insights: dict[str, Any] = result.report["insights"]
    return insights


def wrong(world: World) -> set[tuple[int, str]]:
    """Ids and concepts of the train labels that are not what the image shows."""
    snapshot = world.scene.snapshot
    return {
        (int(snapshot.sample_ids[i]), CONCEPTS[j])
        for i in snapshot.rows("train")
        for j in range(len(CONCEPTS))
        if snapshot.concepts[i, j] == 1 - world.scene.truth[i, j]
    }


def test_concepts_are_ranked_by_real_refits(world: World, found: dict[str, Any]) -> None:
    importance = found["concept_importance"]
    assert importance["ranked_by"] == "refitted"
    assert importance["held_out_rows"] == 60
    most = [entry["concept"] for entry in importance["most"]]
    assert set(most[:2]) == {"top left", "top right"}, "they alone decide the class"
    assert [entry["concept"] for entry in importance["least"]] == most[::-1]
    model, predictor = world.predictors(world.trained)
    train, held_out = (world.rows(world.scene.snapshot, split) for split in ("train", "calibration"))
    p, unseen = (torch.sigmoid(predict_logits(model, rows.images)).double() for rows in (train, held_out))
    kept = [CONCEPTS.index(name) for name in CONCEPTS if name != most[0]]
    fresh = fit_label_predictor(p[:, kept], train.classes, len(CLASSES), weight_decay=TRAINING["label_weight_decay"])
    losses = [
        torch.nn.functional.cross_entropy(logits, held_out.classes)
        for logits in (fresh.logits(unseen[:, kept]), predictor.logits(unseen))
    ]
    assert importance["most"][0]["refitted"] == pytest.approx(float(losses[0] - losses[1]), abs=1e-4)
    agreement = importance["agreement"]
    assert (agreement["size"], agreement["top"], agreement["bottom"]) == (2, 2, 2)
    assert [entry["class"] for entry in importance["classes"]] == CLASSES
    assert sum(entry["rows"] for entry in importance["classes"]) == 60


def test_wrong_labels_are_suspected(world: World, found: dict[str, Any]) -> None:
    """Of 480 labels about 8 % are wrong; the images are noisy, so that not every wrong label can be told."""
    suspected, planted = found["suspected_labels"]["labels"], wrong(world)
    scores = [label["suspicion"] for label in suspected]
    assert scores == sorted(scores, reverse=True)
    assert found["suspected_labels"]["solve"] == found["influential_labels"]["solve"], "one solve serves both"
    assert len(suspected) == 200
    first = suspected[: len(planted)]
    hits = sum((label["sample_id"], label["concept"]) in planted for label in first)
    assert hits > 0.5 * len(planted)
    snapshot = world.scene.snapshot
    for label in suspected:
        row = int(np.searchsorted(snapshot.sample_ids, label["sample_id"]))
        assert label["label"] == snapshot.concepts[row, CONCEPTS.index(label["concept"])] != UNKNOWN
    by_loss = sorted(suspected, key=lambda label: -label["loss"])
    ranks = [label["loss_rank"] for label in by_loss]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1


def test_wrong_labels_are_among_the_harmful(world: World, found: dict[str, Any]) -> None:
    labels = found["influential_labels"]
    assert labels["target"] == {"sample_id": None, "rows": 60}
    assert labels["solve"]["curvature_rows"] == labels["train_rows"] == 120
    assert labels["solve"]["relative_residual"] < 0.2
    assert all(label["influence"] > 0 for label in labels["harmful"])
    assert all(label["influence"] < 0 for label in labels["helpful"])
    assert labels["harmful"][0]["influence"] == max(label["influence"] for label in labels["harmful"])
    # A harmful label would be better turned around: what it costs to be there is part of what a flip brings.
    assert all(label["if_flipped"] < 0 for label in labels["harmful"])
    planted = wrong(world)
    harmful, helpful = (
        sum((label["sample_id"], label["concept"]) in planted for label in labels[side][:20])
        for side in ("harmful", "helpful")
    )
    # Of twenty chance finds one or two. The held-out labels are as noisy: some wrong ones help with them.
    assert harmful >= 8
    assert helpful <= 3


def test_the_target_may_be_one_row_of_any_split(world: World) -> None:
    (first, second) = (
        look(world, "influential_labels", top=5, sample_id=world.scene.ids("test")[i]).report["insights"][
            "influential_labels"
        ]
        for i in (0, 1)
    )
    assert first["target"] == {"sample_id": world.scene.ids("test")[0], "rows": 1}
    assert len(first["harmful"]) == len(first["helpful"]) == 5
    assert first["helpful"] != second["helpful"]


def test_factors_are_fitted_where_a_version_has_none(world: World) -> None:
    bare = replace(world.base, factors_digest=None, factors_version=None)
    with_own, without = (look(world, "suspected_labels", base=base, top=10) for base in (world.base, bare))
    assert with_own.report["insights"] == without.report["insights"], "the same seed fits the same factors"
    assert ("fitting", 2, 3) in world.scene.reports


def test_stages_are_told_in_numbers(own_world: World) -> None:
    look(own_world, *ALL, top=1)
    stages = own_world.scene.reports
    assert stages[0] == ("loading", 0, 1)
    assert [("concepts", done, 4) for done in range(1, 5)] == [stage for stage in stages if stage[0] == "concepts"]
    assert ("solving", 1, 16) in stages
    assert ("labels", 120, 120) in stages


@pytest.fixture(scope="session")
def edited(world: World) -> BaseVersion:
    """A version that lost a concept and a test row."""
    removed = world.scene.ids("test")[0]
    changes = replace(world.changes("fix"), dropped=(3,), removed=(removed,))
    with single_thread():
        return version(world.scene.edit(world.base, changes, **TOLERANT), 2)


def test_changed_predictions_are_those_of_both_versions(world: World, edited: BaseVersion) -> None:
    compared = {"base": world.base, "edited": edited}
    result = look(world, "changed_predictions", base=edited, compared=compared, top=7)
    found = result.report["insights"]["changed_predictions"]
    assert (found["compared_with"], found["rows"], found["concepts"]) == (1, 59, 3)
    after = Result(edited.concepts, True, edited.snapshot_digest, edited.weights_digest)
    rows = world.rows(world.snapshot(after), "test")
    probabilities, classes = [], []
    for made in (world.trained, after):
        model, predictor = world.predictors(made)
        p = torch.sigmoid(predict_logits(model, rows.images))
        probabilities.append(p[:, :3])
        classes.append(predictor.logits(p).argmax(dim=1))
    distances = (probabilities[1] - probabilities[0]).abs()
    assert found["relabelled"] == int((classes[0] != classes[1]).sum())
    assert found["mean_abs_dp"] == pytest.approx(float(distances.mean()), rel=1e-5)
    assert found["max_abs_dp"] == pytest.approx(float(distances.max()), rel=1e-5)
    assert len(found["predictions"]) == 7
    unlike = [p for p in found["predictions"] if p["class_before"] != p["class_after"]]
    assert found["predictions"][: len(unlike)] == unlike
    assert len(unlike) == min(7, found["relabelled"])
    for prediction in found["predictions"]:
        (i,) = (rows.sample_ids == prediction["sample_id"]).nonzero().flatten().tolist()
        j = CONCEPTS.index(prediction["concept"])
        assert prediction["before"] == pytest.approx(float(probabilities[0][i, j]), abs=1e-5)
        assert prediction["after"] == pytest.approx(float(probabilities[1][i, j]), abs=1e-5)
        assert abs(prediction["after"] - prediction["before"]) == pytest.approx(float(distances[i].max()), abs=1e-5)


def test_versions_without_a_common_test_row_are_not_compared(own_world: World) -> None:
    scene = own_world.scene
    others = scene.more(6, split=2)
    elsewhere = scene.snapshot.apply(SnapshotChanges(removed=tuple(scene.ids("test")), added=others.added))
    scene.store.put(elsewhere.to_bytes())
    moved = replace(own_world.base, number=2, snapshot_digest=elsewhere.digest)
    compared = {"base": own_world.base, "edited": moved}
    with pytest.raises(TaskFailure, match="nothing_to_compare"):
        look(own_world, "changed_predictions", base=moved, compared=compared)
