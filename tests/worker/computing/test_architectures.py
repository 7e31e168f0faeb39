"""The other architecture goes the same road: ResNet-18 through training, factors, an edit and its reference."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import SnapshotChanges
from tests.worker.computing.scene import BRIEF, Scene, version
from worker.cbm.concept_predictor import build_concept_predictor
from worker.tasks import TaskFailure

RESNET = {"name": "resnet18", "stem": "small", "width": 8, "image_size": 16, "channels": 3}


def test_a_resnet_is_trained_edited_and_compared(tmp_path: Path) -> None:
    scene = Scene.build(LocalArtifactStore(tmp_path), rows={"train": 48, "calibration": 24, "test": 24})
    settings = {"architecture": RESNET, "training": BRIEF}
    trained = scene.train(**settings)
    fitted = scene.run(scene.task("fit_factors", base=version(trained), **settings))
    # Twenty convolutions, the head, and an exact block for each of twenty BatchNorms.
    manifest = fitted.report["manifest"]
    assert (len(manifest["layers"]), len(manifest["norms"])) == (21, 20)
    assert manifest["uncovered"] == []

    base = version(trained, factors=fitted)
    train = scene.ids("train")
    changes = SnapshotChanges(
        fixes=scene.wrong_labels(4).fixes, dropped=(3,), removed=tuple(train[:4]), added=scene.more(4).added
    )
    options = {"tolerance": {"concept_f1": 1.0, "label_f1": 1.0}}  # four epochs teach too little to guard
    edited = scene.run(scene.task("edit", base=base, changes=changes.to_json(), options=options, **settings))
    assert edited.publishes
    assert edited.snapshot_digest == scene.snapshot.apply(changes).digest
    assert math.isfinite(edited.report["step"]["norm"])

    child = version(edited, 2)
    compared = {"base": base, "edited": child, "changes": changes.to_json(), "report": edited.report}
    reference = scene.run(scene.task("retrain", base=child, compared=compared, **settings))
    assert reference.report["comparison"]["rows"].keys() == edited.report["edited_rows"].keys()


MOBILE = {
    "name": "mobilenet_v3_small",
    "stem": "small",
    "width_multiplier": 0.1,
    "image_size": 16,
    "channels": 3,
    "normalisation": "imagenet",
}


@pytest.mark.parametrize("frozen", [False, True])
def test_training_starts_at_pretrained_weights_and_again_without_the_upload(tmp_path: Path, frozen: bool) -> None:
    scene = Scene.build(LocalArtifactStore(tmp_path), rows={"train": 32, "calibration": 16, "test": 16})
    pretrained = build_concept_predictor(MOBILE, 2, seed=9).backbone
    data = save({**pretrained.state_dict(), "classifier.0.weight": torch.zeros(1)})
    scene.store.put_upload("up-1", data)
    architecture = MOBILE | {"pretrained_sha256": hashlib.sha256(data).hexdigest()}
    training = BRIEF | {"epochs": 1, "weight_decay": 1e-2, "frozen_backbone": frozen}
    trained = scene.train(architecture=architecture, training=training, upload_id="up-1")
    assert trained.weights_digest is not None
    state = load_file(scene.store.fetch(trained.weights_digest))
    same = [torch.equal(value, state[f"g.backbone.{name}"]) for name, value in pretrained.state_dict().items()]
    assert all(same) is frozen
    scene.store.delete_upload("up-1")
    again = scene.train(architecture=architecture, training=training)
    assert again.weights_digest == trained.weights_digest


def test_pretrained_weights_that_do_not_fit_or_are_gone_fail_the_training(tmp_path: Path) -> None:
    scene = Scene.build(LocalArtifactStore(tmp_path), rows={"train": 16, "calibration": 8, "test": 8})
    data = save({"features.0.0.weight": torch.zeros(1)})
    architecture = MOBILE | {"pretrained_sha256": hashlib.sha256(data).hexdigest()}
    with pytest.raises(TaskFailure) as failure:
        scene.train(architecture=architecture, training=BRIEF)
    assert failure.value.code == "pretrained_missing"
    scene.store.put_upload("up-1", data)
    with pytest.raises(TaskFailure, match="tensors are missing, the first is features") as failure:
        scene.train(architecture=architecture, training=BRIEF, upload_id="up-1")
    assert failure.value.code == "weights_do_not_fit"
