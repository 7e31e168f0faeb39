"""Previews tell what the edit does, to the last digit, and leave nothing but factors that were missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import SnapshotChanges
from tests.worker.computing.scene import DATASET, KINDS, TOLERANT, World, version
from worker.computing import workbench
from worker.tasks import BaseVersion, Result, TaskFailure

MEASURED = ("method", "operations", "metrics", "edited_rows", "membership", "step", "calibration", "seeds", "factors")


def preview(world: World, base: BaseVersion, changes: SnapshotChanges, **options: Any) -> Result:
    scene = world.scene
    return scene.run(scene.task("preview", base=base, changes=changes.to_json(), options=options))


def files(world: World) -> set[Path]:
    assert isinstance(world.scene.store, LocalArtifactStore)
    return {path for path in world.scene.store.root.rglob("*") if path.is_file()}


def of(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in MEASURED}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_predicted_is_what_happens(own_world: World, kind: str) -> None:
    changes = own_world.changes(kind)
    before = files(own_world)
    predicted = preview(own_world, own_world.base, changes, **TOLERANT)
    assert files(own_world) == before
    assert not predicted.publishes
    assert (predicted.weights_digest, predicted.snapshot_digest, predicted.factors_digest) == (None, None, None)
    report = predicted.report
    assert (report["kind"], report["would"], report["error"]) == ("preview", "succeed", None)
    edit = own_world.scene.edit(own_world.base, changes, **TOLERANT)
    assert of(report) == of(edit.report)
    assert report["timings"].keys() == edit.report["timings"].keys()
    assert report["seconds"] > 0


def test_a_refusal_is_a_result_with_the_numbers_that_led_to_it(world: World) -> None:
    """The concept that tells the classes apart is dropped."""
    changes = SnapshotChanges(dropped=(0,))
    report = preview(world, world.base, changes).report
    with pytest.raises(TaskFailure) as failure:
        world.scene.edit(world.base, changes)
    assert report["would"] == "fail"
    assert report["error"] == {"code": failure.value.code, "detail": failure.value.detail}
    assert failure.value.code == "utility_fell"
    fall = report["calibration"]["before"]["label_f1"] - report["calibration"]["after"]["label_f1"]
    assert f"would fall by {fall:.4f}" in failure.value.detail
    assert report["metrics"]["after"]["label_f1"] < report["metrics"]["before"]["label_f1"] - 0.02


@pytest.mark.parametrize("changes", [SnapshotChanges(removed=(9_999,)), None], ids=["unknown row", "empty class"])
def test_a_refusal_before_the_computation_is_a_result_too(world: World, changes: SnapshotChanges | None) -> None:
    snapshot = world.scene.snapshot
    rows = snapshot.rows("train")
    whole_class = tuple(snapshot.sample_ids[rows[snapshot.classes[rows] == 2]].tolist())
    report = preview(world, world.base, changes or SnapshotChanges(removed=whole_class)).report
    assert (report["kind"], report["would"]) == ("preview", "fail")
    assert report["error"]["code"] == ("edit_no_longer_applies" if changes else "class_emptied")


def test_a_retraining_that_is_allowed_is_previewed_too(world: World) -> None:
    changes = SnapshotChanges(dropped=(0,))
    report = preview(world, world.base, changes, on_failure="retrain").report
    assert (report["would"], report["method"], report["refused"]["code"]) == ("succeed", "retrain", "utility_fell")
    edit = world.scene.edit(world.base, changes, on_failure="retrain")
    assert report["metrics"] == edit.report["metrics"]


class TestFactors:
    def test_those_that_were_missing_stay_with_the_version(self, own_world: World) -> None:
        """They are those that a fit makes: the next edit has them, and a fit has nothing to add."""
        bare, before = version(own_world.trained), files(own_world)
        assert own_world.fitted.factors_digest is not None
        own_world.scene.store.delete(own_world.fitted.factors_digest)
        predicted = preview(own_world, bare, own_world.changes("fix"), **TOLERANT)
        assert predicted.factors_digest == own_world.fitted.factors_digest
        assert predicted.factors_version == 1
        assert predicted.report["factors"] == {"fitted_here": True, "version": 1, "age": 0, "refreshed": False}
        assert files(own_world) == before

    def test_those_of_the_paper_s_method_do_not_replace_the_version_s(self, world: World) -> None:
        anything: dict[str, Any] = {"tolerance": {"concept_f1": 1.0, "label_f1": 1.0}}
        predicted = preview(world, world.base, world.changes("fix"), method="closed_form", **anything)
        assert predicted.report["factors"]["fitted_here"]
        assert predicted.factors_digest is None


def test_no_decoded_copy_of_lent_rows_is_kept(own_world: World) -> None:
    scene, changes = own_world.scene, own_world.changes("add")
    preview(own_world, own_world.base, changes, **TOLERANT)
    added = [row.sample_id for row in changes.added]
    scene.store.delete_images(DATASET, added)
    with pytest.raises(FileNotFoundError):
        workbench.IMAGES.read(scene.store, DATASET, added[:1], 8, 1)
