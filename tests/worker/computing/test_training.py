"""Version 1: trained or registered; and the factors of a version."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save

from tests.worker.computing.scene import BRIEF, CONCEPTS, TRAINING, Scene, World, version
from worker.cbm.label_predictor import LabelObjective
from worker.cbm.training import predict_logits
from worker.cbm.weights import save_weights
from worker.curvature.storage import load_factors
from worker.tasks import Result, Task, TaskFailure


def stages(scene: Scene) -> list[str]:
    """Stages in the order in which they were first reported."""
    return list(dict.fromkeys(stage for stage, _, _ in scene.reports))


class TestTraining:
    def test_a_version_is_published_with_what_it_was_trained_on(self, world: World) -> None:
        trained = world.trained
        assert trained.publishes
        assert trained.snapshot_digest == world.scene.snapshot.digest
        assert trained.concepts == CONCEPTS
        assert trained.factors_digest is None
        assert trained.metrics["rows"] == 60
        assert trained.metrics["concepts"].keys() == set(CONCEPTS)
        # Eight of a hundred labels are wrong, in the test split too, so that no model can score above about 0.92.
        assert trained.metrics["concept_f1"] > 0.85
        assert trained.metrics["label_f1"] > 0.85

    def test_its_report_says_how(self, world: World) -> None:
        report = world.trained.report
        assert report["kind"] == "train"
        assert report["device"] == "cpu"
        assert report["seed"] == 0
        assert report["metrics"] == world.trained.metrics
        assert 0 < report["best_epoch"] <= report["epochs_run"] == len(report["history"])
        assert report["seconds"] > 0

    def test_its_label_predictor_is_converged_on_its_probabilities(self, world: World) -> None:
        model, label_predictor = world.predictors(world.trained)
        rows = world.rows(world.scene.snapshot)
        probabilities = torch.sigmoid(predict_logits(model, rows.images))
        objective = LabelObjective(probabilities, rows.classes, 3, TRAINING["label_weight_decay"])
        theta = torch.cat([label_predictor.weight, label_predictor.bias[:, None]], dim=1)
        assert float(objective.gradient(theta).abs().max()) <= 1e-8

    def test_equal_seeds_make_equal_weights_and_others_do_not(self, own_world: World) -> None:
        scene = own_world.scene
        assert scene.train().weights_digest == own_world.trained.weights_digest
        assert stages(scene) == ["loading", "training", "evaluating", "publishing"]
        assert ("training", TRAINING["epochs"], TRAINING["epochs"]) in scene.reports
        others = [scene.train(seed=seed, training=BRIEF).weights_digest for seed in (0, 1)]
        assert len({own_world.trained.weights_digest, *others}) == 3

    @pytest.mark.parametrize("split", ["train", "calibration", "test"])
    def test_an_empty_split_is_told(self, own_world: World, split: str) -> None:
        scene = own_world.scene
        gone = scene.snapshot.rows(split)
        kept = [i for i in range(len(scene.snapshot)) if i not in set(gone.tolist())]
        snapshot = scene.snapshot
        smaller = replace(
            snapshot,
            sample_ids=snapshot.sample_ids[kept],
            splits=snapshot.splits[kept],
            classes=snapshot.classes[kept],
            concepts=snapshot.concepts[kept],
        )
        with pytest.raises(TaskFailure, match=f"the {split} split has no rows") as failure:
            scene.train(snapshot_digest=scene.store.put(smaller.to_bytes()))
        assert failure.value.code == "empty_split"


class TestRegistration:
    def register(self, world: World, data: bytes) -> Result:
        world.scene.store.put_upload("up-1", data)
        return world.scene.run(world.scene.task("register", upload_id="up-1"))

    def test_weights_are_taken_over_as_they_are(self, own_world: World) -> None:
        data = save_weights(*own_world.predictors(own_world.trained))
        registered = self.register(own_world, data)
        assert registered.publishes
        assert registered.weights_digest == own_world.trained.weights_digest
        assert registered.snapshot_digest == own_world.scene.snapshot.digest
        assert registered.metrics == own_world.trained.metrics
        assert registered.report["label_predictor_fitted"] is False

    def test_a_missing_label_predictor_is_fitted_as_training_would(self, own_world: World) -> None:
        data = save_weights(*own_world.predictors(own_world.trained))
        without = save({name: value for name, value in load(data).items() if name.startswith("g.")})
        registered = self.register(own_world, without)
        assert registered.weights_digest == own_world.trained.weights_digest
        assert registered.report["label_predictor_fitted"] is True

    @pytest.mark.parametrize("data", [b"", b"no weights", save({"g.head.weight": torch.zeros(4, 64)})])
    def test_weights_that_do_not_fit_are_refused(self, own_world: World, data: bytes) -> None:
        with pytest.raises(TaskFailure) as failure:
            self.register(own_world, data)
        assert failure.value.code == "weights_do_not_fit"


class TestFactors:
    def test_factors_belong_to_their_version_and_cover_the_model(self, world: World) -> None:
        fitted = world.fitted
        assert not fitted.publishes
        assert fitted.factors_version == 1
        assert fitted.weights_digest is None
        assert fitted.factors_digest is not None
        factors = load_factors(world.scene.store.fetch(fitted.factors_digest), "cpu")
        model, _ = world.predictors(world.trained)
        assert set(factors.parameter_names) == dict(model.named_parameters()).keys()
        assert factors.record.rows == 120
        assert fitted.report["factors_sha256"] == fitted.factors_digest
        assert fitted.report["manifest"] == factors.manifest()

    def test_equal_seeds_make_equal_factors(self, own_world: World) -> None:
        scene, base = own_world.scene, version(own_world.trained)
        assert scene.run(scene.task("fit_factors", base=base)).factors_digest == own_world.fitted.factors_digest
        assert stages(scene) == ["loading", "fitting", "publishing"]
        other = scene.run(scene.task("fit_factors", base=base, seed=1))
        assert other.factors_digest != own_world.fitted.factors_digest


@pytest.mark.parametrize("kind", ["edit", "fit_factors", "retrain", "register"])
def test_a_task_without_what_its_kind_needs_is_a_mistake(own_world: World, kind: str) -> None:
    task: Task = own_world.scene.task(kind)
    with pytest.raises(RuntimeError, match=r"a retraining|an edit needs|factors are fitted|a registration needs"):
        own_world.scene.run(task)
