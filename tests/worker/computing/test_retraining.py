"""Training anew as a reference: repetitions, and the comparison of an edit with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from app.datasets.snapshots import SnapshotChanges
from tests.worker.computing.scene import BRIEF, DATASET, TOLERANT, World, version
from tests.worker.threads import single_thread
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.computing import workbench
from worker.computing.retraining import closure, mean_metrics
from worker.data.images import ImageCache
from worker.evidence.membership import loss_attack_auc
from worker.tasks import BaseVersion, Result, Task


def edited(world: World, changes: SnapshotChanges) -> Result:
    return world.scene.edit(world.base, changes, **TOLERANT)


def retraining(world: World, result: Result, changes: SnapshotChanges, repeats: int = 1) -> Task:
    """Of the version that an edit of version 1 made, with brief trainings."""
    child: BaseVersion = version(result, 2)
    compared: dict[str, Any] = {
        "base": world.base,
        "edited": child,
        "changes": changes.to_json(),
        "report": result.report,
    }
    options = {"repeats": repeats}
    return world.scene.task("retrain", base=child, compared=compared, options=options, training=BRIEF)


def test_a_retraining_publishes_nothing_and_scores_like_a_training(world: World) -> None:
    result = world.scene.run(world.scene.task("retrain", base=world.base))
    assert not result.publishes
    assert result.weights_digest is None
    assert result.factors_digest is None
    # The same seed on the same data: the same model.
    assert result.metrics == world.trained.metrics
    assert result.report["comparison"] is None
    assert result.report["version"] == 1
    assert result.report["seeds"] == [0]


def test_repetitions_have_successive_seeds_and_mean_metrics(own_world: World) -> None:
    scene = own_world.scene
    both = scene.run(scene.task("retrain", base=own_world.base, seed=5, options={"repeats": 2}, training=BRIEF))
    assert both.report["seeds"] == [5, 6]
    single = [
        scene.run(scene.task("retrain", base=own_world.base, seed=seed, training=BRIEF)).metrics for seed in (5, 6)
    ]
    for name in ("concept_f1", "label_accuracy"):
        assert both.metrics[name] == pytest.approx(np.mean([metrics[name] for metrics in single]))
    assert both.report["total_seconds"] == pytest.approx(2 * both.report["seconds"])
    assert ("retraining", 8, 8) in scene.reports  # four epochs twice, as one stage


@pytest.fixture(scope="session")
def retrained(world: World, removal: tuple[SnapshotChanges, Result, Result]) -> list[ConceptPredictor]:
    """What the repetitions must have been, trained apart."""
    with single_thread():
        return [
            world.predictors(world.scene.train(snapshot_digest=removal[1].snapshot_digest, seed=seed, training=BRIEF))[
                0
            ]
            for seed in (0, 1)
        ]


@pytest.fixture(scope="session")
def removal(world: World) -> tuple[SnapshotChanges, Result, Result]:
    """Changes, edit, and a retraining of two repetitions compared with it."""
    changes = world.changes("remove")
    with single_thread():
        result = edited(world, changes)
        return changes, result, world.scene.run(retraining(world, result, changes, repeats=2))


def test_a_removal_is_compared_with_its_retraining(
    world: World, removal: tuple[SnapshotChanges, Result, Result], retrained: list[ConceptPredictor]
) -> None:
    """Against losses and attacks computed here, from models trained here."""
    changes, result, reference = removal
    comparison = reference.report["comparison"]
    assert (comparison["base_version"], comparison["version"], comparison["erased_rows"]) == (1, 2, 0)
    rows = world.rows(world.scene.snapshot)
    removed = rows.take(torch.isin(rows.sample_ids, torch.tensor(changes.removed)))
    test = world.rows(world.scene.snapshot, "test")
    models = {"before": [world.predictors(world.trained)[0]], "after": [world.predictors(result)[0]]}
    losses, areas = {}, {}
    for when, some in (models | {"retrained": retrained}).items():
        members = [concept_losses(predict_logits(model, removed.images), removed.concepts) for model in some]
        others = [concept_losses(predict_logits(model, test.images), test.concepts) for model in some]
        losses[when] = float(torch.stack(members).mean())
        areas[when] = np.mean([loss_attack_auc(m.numpy(), o.numpy()) for m, o in zip(members, others, strict=True)])
    group = comparison["rows"]["removed"]
    for when, value in losses.items():
        assert group[f"loss_{when}"] == pytest.approx(value, rel=1e-5)
        assert comparison["membership"][f"auc_{when}"] == pytest.approx(areas[when])
    expected = (losses["after"] - losses["before"]) / (losses["retrained"] - losses["before"])
    assert group["closure"] == pytest.approx(expected, rel=1e-4)
    first, second = (
        float(concept_losses(predict_logits(model, removed.images), removed.concepts).mean()) - losses["before"]
        for model in retrained
    )
    assert group["closure_floor"] == pytest.approx((abs(first / second - 1) + abs(second / first - 1)) / 2, rel=1e-3)


def test_distances_are_those_between_predictions(
    world: World, removal: tuple[SnapshotChanges, Result, Result], retrained: list[ConceptPredictor]
) -> None:
    _, result, reference = removal
    images = world.rows(world.scene.snapshot, "test").images
    first, second, mine = (
        torch.sigmoid(predict_logits(model, images)) for model in (*retrained, world.predictors(result)[0])
    )
    found = reference.report["comparison"]["mean_abs_dp"]
    assert found["floor"] == pytest.approx(float((first - second).abs().mean()), rel=1e-5)
    expected = (float((mine - first).abs().mean()) + float((mine - second).abs().mean())) / 2
    assert found["edited"] == pytest.approx(expected, rel=1e-5)


def test_metrics_are_put_side_by_side(removal: tuple[SnapshotChanges, Result, Result]) -> None:
    _, result, reference = removal
    for name in ("concept_f1", "label_f1"):
        assert reference.report["comparison"]["metrics"][name] == {
            "before": result.report["metrics"]["before"][name],
            "after": result.metrics[name],
            "retrained": reference.metrics[name],
        }


def test_a_drop_is_compared_over_the_kept_concepts(world: World) -> None:
    changes = world.changes("mixture")
    result = edited(world, changes)
    comparison = world.scene.run(retraining(world, result, changes)).report["comparison"]
    assert comparison["rows"].keys() == {"removed", "fixed", "added"}
    for name, group in comparison["rows"].items():
        assert group["loss_before"] == pytest.approx(result.report["edited_rows"][name]["loss_before"], rel=1e-5)
        assert group["loss_after"] == pytest.approx(result.report["edited_rows"][name]["loss_after"], rel=1e-5)
    assert comparison["mean_abs_dp"]["floor"] is None  # one repetition has no other to differ from
    assert {group["closure_floor"] for group in comparison["rows"].values()} == {None}


def test_erased_rows_are_left_out_of_the_comparison(own_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    removal, correction = own_world.changes("remove"), own_world.changes("fix")
    changes = replace(removal, fixes=tuple(fix for fix in correction.fixes if fix[0] not in removal.removed))
    result = edited(own_world, changes)
    own_world.scene.store.delete_images(DATASET, changes.removed[:5])
    monkeypatch.setattr(workbench, "IMAGES", ImageCache(1 << 24))
    some = own_world.scene.run(retraining(own_world, result, changes)).report["comparison"]
    assert some["erased_rows"] == 5
    assert some["rows"]["removed"]["rows"] == some["membership"]["members"] == 7
    own_world.scene.store.delete_images(DATASET, changes.removed)
    monkeypatch.setattr(workbench, "IMAGES", ImageCache(1 << 24))
    none = own_world.scene.run(retraining(own_world, result, changes)).report["comparison"]
    assert none["erased_rows"] == 12
    assert none["membership"] is None
    assert none["rows"].keys() == {"fixed"}
    assert none["rows"]["fixed"] == pytest.approx(some["rows"]["fixed"])
    assert none["mean_abs_dp"] == pytest.approx(some["mean_abs_dp"])


@pytest.mark.parametrize(
    ("before", "after", "retrained", "expected"),
    [
        (0.2, 0.6, 0.6, 1.0),
        (0.2, 0.4, 0.6, 0.5),
        (1.0, 1.1, 0.5, -0.2),
        (0.2, 0.2, 0.6, 0.0),
        (0.5, 0.9, 0.5, None),
        (0.5, 0.9, 0.5 + 1e-7, None),
    ],
)
def test_closure(before: float, after: float, retrained: float, expected: float | None) -> None:
    assert closure(before, after, retrained) == (None if expected is None else pytest.approx(expected))


def test_mean_metrics_by_hand() -> None:
    def metrics(value: float) -> dict[str, Any]:
        names = ("concept_f1", "concept_accuracy", "label_f1", "label_accuracy")
        scalars = {name: value + i / 10 for i, name in enumerate(names)}
        return {**scalars, "concepts": {"crest": {"f1": value, "accuracy": 1.0, "rows": 9}}, "rows": 12}

    found = mean_metrics([metrics(0.25), metrics(0.75)])
    assert found == {
        "concept_f1": pytest.approx(0.5),
        "concept_accuracy": pytest.approx(0.6),
        "label_f1": pytest.approx(0.7),
        "label_accuracy": pytest.approx(0.8),
        "concepts": {"crest": {"f1": 0.5, "accuracy": 1.0, "rows": 9}},
        "rows": 12,
    }
