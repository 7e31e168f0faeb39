"""Insights into models with a frozen backbone: of their heads alone, without curvature factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from app.datasets.snapshots import UNKNOWN
from tests.worker.computing.scene import CONCEPTS, Scene, version
from tests.worker.computing.test_frozen import FROZEN, TOLERANT, fresh_features, scene
from worker.cbm.linear_heads import HeadObjective, feature_matrix, fit_heads
from worker.computing.frozen import FrozenWorkbench
from worker.tasks import BaseVersion

__all__ = ["fresh_features", "scene"]


@pytest.fixture(autouse=True)
def no_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise AssertionError("factors are fitted")

    monkeypatch.setattr("worker.computing.insight.fit_on", failing)


def look(scene: Scene, base: BaseVersion, *kinds: str, **given: Any) -> dict[str, Any]:
    options = {"kinds": list(kinds), "top": given.pop("top", 200), "sample_id": given.pop("sample_id", None)}
    result = scene.run(scene.task("insight", base=base, options=options, training=FROZEN, **given))
    assert not result.publishes
    insights: dict[str, Any] = result.report["insights"]
    return insights


def test_labels_are_judged_with_the_heads_own_hessian(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    found = look(scene, base, "influential_labels", "suspected_labels")
    labels, suspected = found["influential_labels"], found["suspected_labels"]
    assert labels["solve"] == suspected["solve"]
    assert (labels["solve"]["stop"], labels["solve"]["curvature_rows"]) == ("direct", 120)
    assert (labels["solve"]["damping"], suspected["damping"]) == (FROZEN["weight_decay"], FROZEN["weight_decay"])
    assert labels["solve"]["relative_residual"] < 1e-8
    assert ("leverages", 4, 4) in scene.reports
    snapshot = scene.snapshot
    planted = {
        (int(snapshot.sample_ids[i]), CONCEPTS[j])
        for i in snapshot.rows("train")
        for j in range(len(CONCEPTS))
        if snapshot.concepts[i, j] == 1 - scene.truth[i, j]
    }
    first = suspected["labels"][: len(planted)]
    hits = sum((label["sample_id"], label["concept"]) in planted for label in first)
    assert hits > 4 * 0.08 * len(planted), "chance finds 8 in a hundred"


def test_the_most_harmful_label_raises_the_loss_of_a_fit_by_as_much_as_it_says(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    harmful = look(scene, base, "influential_labels", top=3)["influential_labels"]["harmful"]
    bench = FrozenWorkbench(scene.task("insight", base=base, training=FROZEN), scene.store, "cpu", print)
    train, held_out = (bench.rows(scene.snapshot, split) for split in ("train", "calibration"))
    decay = FROZEN["weight_decay"]
    objective, target = (HeadObjective(feature_matrix(r), r.concepts, decay) for r in (train, held_out))

    def loss(labels: torch.Tensor) -> float:
        changed = replace(objective, labels=labels)
        theta = fit_heads(changed, torch.zeros(len(CONCEPTS), objective.features.shape[1]).double()).theta
        return float((target.values(theta) - 0.5 * decay * theta.square().sum(dim=1)).sum())

    for label in harmful:
        without = objective.labels.clone()
        row = int((train.sample_ids == label["sample_id"]).nonzero())
        without[row, CONCEPTS.index(label["concept"])] = UNKNOWN
        # One of 120 rows, so the first order is off by tens of per cent.
        assert loss(objective.labels) - loss(without) == pytest.approx(label["influence"], rel=0.5)


def test_the_target_may_be_one_row(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    first, second = (
        look(scene, base, "influential_labels", top=5, sample_id=scene.ids("test")[i])["influential_labels"]
        for i in (0, 1)
    )
    assert first["target"] == {"sample_id": scene.ids("test")[0], "rows": 1}
    assert first["helpful"] != second["helpful"]


def test_concepts_are_ranked_and_changes_told(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    changes = replace(scene.wrong_labels(12), dropped=(3,))
    edit = scene.task("edit", base=base, changes=changes.to_json(), options=TOLERANT, training=FROZEN)
    edited = version(scene.run(edit), 2)
    found = look(
        scene,
        edited,
        "concept_importance",
        "changed_predictions",
        compared={"base": base, "edited": edited},
    )
    assert {entry["concept"] for entry in found["concept_importance"]["most"]} == set(CONCEPTS[:3])
    assert found["concept_importance"]["agreement"]["size"] == 1
    changed = found["changed_predictions"]
    assert (changed["compared_with"], changed["rows"], changed["concepts"]) == (1, 60, 3)
    assert changed["mean_abs_dp"] > 0
