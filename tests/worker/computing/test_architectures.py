"""The other architecture goes the same road: ResNet-18 through training, factors, an edit and its reference."""

from __future__ import annotations

import math
from pathlib import Path

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import SnapshotChanges
from tests.worker.computing.scene import BRIEF, Scene, version

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
