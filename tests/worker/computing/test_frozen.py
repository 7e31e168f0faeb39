"""Models with a frozen backbone through their jobs: edits are what training anew comes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import NewConcept, SnapshotChanges
from tests.worker.computing.scene import ARCHITECTURE, CLASSES, CONCEPTS, TRAINING, Scene, version
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.training import predict_logits
from worker.cbm.weights import load_weights, save_weights
from worker.computing import workbench
from worker.computing.frozen import FrozenWorkbench
from worker.data.features import FeatureCache
from worker.tasks import Result

FROZEN = TRAINING | {"frozen_backbone": True, "weight_decay": 1e-3}
TOLERANT = {"tolerance": {"concept_f1": 0.3, "label_f1": 0.3}}


@pytest.fixture(autouse=True)
def fresh_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "FEATURES", FeatureCache(1 << 24))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene.build(LocalArtifactStore(tmp_path))


def predictors(scene: Scene, result: Result) -> tuple[ConceptPredictor, LabelPredictor]:
    assert result.weights_digest is not None
    path = scene.store.fetch(result.weights_digest)
    model, label_predictor = load_weights(path, ARCHITECTURE, len(result.concepts), len(CLASSES), "cpu")
    assert label_predictor is not None
    return model, label_predictor


def changes_of(scene: Scene, name: str) -> SnapshotChanges:
    train = scene.ids("train")
    new = NewConcept("bright", tuple((i, i % 2) for i in train[20:80]))
    every = {
        "fix": scene.wrong_labels(12),
        "withdraw": SnapshotChanges(fixes=((train[3], 1, -1),)),
        "remove": SnapshotChanges(removed=tuple(train[:12])),
        "add": scene.more(20),
        "drop": SnapshotChanges(dropped=(3,)),
        "new": SnapshotChanges(new=(new,)),
        "mixture": SnapshotChanges(
            fixes=scene.wrong_labels(12).fixes,
            removed=tuple(train[-8:]),
            dropped=(2,),
            added=tuple(replace(row, concepts=(*row.concepts, 1)) for row in scene.more(10, first_id=20_000).added),
            new=(new,),
        ),
    }
    return every[name]


@pytest.mark.parametrize("name", ["fix", "withdraw", "remove", "add", "drop", "new", "mixture"])
def test_an_edit_is_what_training_on_the_edited_data_comes_to(scene: Scene, name: str) -> None:
    trained = scene.train(training=FROZEN)
    changes = changes_of(scene, name)
    task = scene.task("edit", base=version(trained), changes=changes.to_json(), options=TOLERANT, training=FROZEN)
    edited = scene.run(task)
    assert edited.publishes
    assert edited.factors_digest is None

    assert edited.snapshot_digest == scene.snapshot.apply(changes).digest
    anew = scene.train(training=FROZEN, snapshot_digest=edited.snapshot_digest, concepts=edited.concepts)
    (model, label), (expected, expected_label) = predictors(scene, edited), predictors(scene, anew)
    for part, value in expected.backbone.state_dict().items():
        assert torch.equal(value, model.backbone.state_dict()[part])
    # Stored in single precision: both are the rounded minimiser, to a unit in the last place.
    torch.testing.assert_close(model.head.weight, expected.head.weight, rtol=3e-7, atol=1e-6)
    torch.testing.assert_close(model.head.bias, expected.head.bias, rtol=3e-7, atol=1e-6)
    torch.testing.assert_close(label.weight, expected_label.weight, rtol=0, atol=1e-4)
    for score in ("concept_f1", "concept_accuracy", "label_f1", "label_accuracy"):
        assert edited.metrics[score] == pytest.approx(anew.metrics[score], abs=1e-12)


@pytest.mark.parametrize("name", ["fix", "drop", "new"])
def test_what_an_edit_does_not_concern_stays_byte_for_byte(scene: Scene, name: str) -> None:
    trained = scene.train(training=FROZEN)
    base = version(trained)
    changes = SnapshotChanges(fixes=scene.wrong_labels(1).fixes) if name == "fix" else changes_of(scene, name)
    edited = scene.run(scene.task("edit", base=base, changes=changes.to_json(), options=TOLERANT, training=FROZEN))
    touched = {changes.fixes[0][1]} if name == "fix" else set(changes.dropped)
    before, after = predictors(scene, trained)[0], predictors(scene, edited)[0]
    kept = [j for j in range(len(CONCEPTS)) if j not in touched]
    columns = [edited.concepts.index(CONCEPTS[j]) for j in kept]
    assert torch.equal(before.head.weight[kept], after.head.weight[columns])
    assert edited.report["step"]["concepts_solved"] == (0 if name == "drop" else 1)


def test_the_report_says_what_is_certified_and_what_is_not(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    changes = changes_of(scene, "remove")
    task = scene.task("edit", base=base, changes=changes.to_json(), options=TOLERANT, training=FROZEN)
    report = scene.run(task).report
    assert report["method"] == "exact"
    assert report["factors"] is None
    assert report["edited_rows"]["removed"]["rows"] == 12
    assert report["edited_rows"]["removed"]["loss_after"] > report["edited_rows"]["removed"]["loss_before"]
    assert report["membership"]["members"] == 12
    assert report["evidence"]["claim"] == "exact for the concept heads, given fixed features of the backbone"
    assert report["step"]["gradient_norm"]["after"] < 1e-4 * report["step"]["gradient_norm"]["before"]
    certificate = report["certificate"]
    step = certificate["newton_step"]
    assert step["concepts"].keys() == set(CONCEPTS)
    for bounds in step["concepts"].values():
        assert 0 < bounds["residual"] <= bounds["sharp_bound"] <= bounds["bound"]
    assert step["worst"]["residual"] == step["concepts"][step["worst_concept"]]["residual"]
    assert certificate["converged"]["gradient_norm"] <= certificate["converged"]["tolerance"]
    assert 0 < certificate["stored"]["gradient_norm"] < 1e-6  # rounding to single precision, and nothing else
    assert certificate["label_predictor"]["gradient_norm"] < 1e-9
    assert any("epsilon" in line for line in certificate["does_not_cover"])
    assert {"loading", "solving", "certificate", "label_predictor", "guard", "evaluating"} <= report["timings"].keys()


def test_a_preview_says_what_the_edit_then_does(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    given = {"base": base, "changes": changes_of(scene, "mixture").to_json(), "options": TOLERANT, "training": FROZEN}
    previewed = scene.run(scene.task("preview", **given))
    edited = scene.run(scene.task("edit", **given))
    assert not previewed.publishes
    assert previewed.report["would"] == "succeed"
    for part in ("metrics", "edited_rows", "calibration", "certificate"):
        assert previewed.report[part] == edited.report[part]


def test_a_fall_of_quality_is_refused_unless_retraining_is_allowed(scene: Scene) -> None:
    """Training anew comes to the same model, so the edit itself is published then."""
    base = version(scene.train(training=FROZEN))
    wrong = SnapshotChanges(fixes=tuple((i, j, int(i % 2)) for i in scene.ids("train") for j in range(4)))
    options = {"tolerance": {"concept_f1": 0.0, "label_f1": 0.0}}
    given = {"base": base, "changes": wrong.to_json(), "training": FROZEN}
    previewed = scene.run(scene.task("preview", options=options, **given)).report
    assert previewed["would"] == "fail"
    assert previewed["error"]["code"] == "utility_fell"
    allowed = scene.run(scene.task("edit", options=options | {"on_failure": "retrain"}, **given))
    assert allowed.publishes
    assert allowed.report["refused"]["code"] == "utility_fell"


def test_features_are_computed_once_and_forgotten_with_their_rows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = version(scene.train(training=FROZEN))
    kept = len(workbench.FEATURES._features)
    assert kept == len(scene.snapshot)

    def failing(*_: object) -> torch.Tensor:
        raise AssertionError("features are computed again")

    monkeypatch.setattr("worker.computing.frozen.features_under", failing)
    task = scene.task(
        "edit", base=base, changes=changes_of(scene, "remove").to_json(), options=TOLERANT, training=FROZEN
    )
    scene.run(task)
    assert len(workbench.FEATURES._features) == kept - 12


def test_a_retraining_keeps_the_backbone(scene: Scene) -> None:
    trained = scene.train(training=FROZEN)
    base = version(trained)
    options = {"repeats": 2}
    reference = scene.run(scene.task("retrain", base=base, options=options, training=FROZEN, seed=5))
    # Both repetitions come to the one minimiser.
    assert reference.metrics["concept_f1"] == pytest.approx(trained.metrics["concept_f1"], abs=1e-12)


def test_registered_weights_keep_their_backbone_and_have_their_head_converged(scene: Scene) -> None:
    model, label_predictor = predictors(scene, scene.train(training=TRAINING | {"epochs": 4}))
    scene.store.put_upload("up-1", save_weights(model, label_predictor))
    registered = scene.run(scene.task("register", upload_id="up-1", training=FROZEN))
    found, _ = predictors(scene, registered)
    for part, value in model.backbone.state_dict().items():
        assert torch.equal(value, found.backbone.state_dict()[part])
    assert not torch.equal(model.head.weight, found.head.weight)
    assert registered.report["concept_gradient_norm"] <= 1e-10
    assert registered.report["label_predictor_fitted"] is True


def test_the_stored_model_predicts_from_images_what_its_head_does_from_features(scene: Scene) -> None:
    trained = scene.train(training=FROZEN)
    bench = FrozenWorkbench(scene.task("edit", base=version(trained), training=FROZEN), scene.store, "cpu", print)
    view, _ = bench.model(version(trained))
    features = bench.rows(scene.snapshot, "test")
    plain = workbench.Workbench(bench.task, scene.store, "cpu", print)
    images = plain.rows(scene.snapshot, "test")
    whole, _ = plain.model(version(trained))
    torch.testing.assert_close(
        predict_logits(view, features.images), predict_logits(whole, images.images), rtol=1e-5, atol=1e-5
    )


def test_full_evidence_and_the_comparison_with_a_retraining(scene: Scene) -> None:
    base = version(scene.train(training=FROZEN))
    changes = changes_of(scene, "remove")
    options = TOLERANT | {"evidence": "full", "reference_models": 2}
    edited = scene.run(scene.task("edit", base=base, changes=changes.to_json(), options=options, training=FROZEN))
    assert edited.report["evidence"]["rmia"]["reference_models"] == 2
    child = version(edited, 2)
    compared = {"base": base, "edited": child, "changes": changes.to_json(), "report": edited.report}
    comparison = scene.run(scene.task("retrain", base=child, compared=compared, training=FROZEN)).report["comparison"]
    assert comparison["evidence"]["claim"] == edited.report["evidence"]["claim"]
    assert comparison["rows"]["removed"]["closure"] == pytest.approx(1, abs=1e-5)
    assert comparison["mean_abs_dp"]["edited"] < 1e-6
