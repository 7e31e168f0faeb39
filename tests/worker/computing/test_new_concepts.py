"""Edits that add concepts: what they publish, how well the concepts are told, and what follows from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.datasets.snapshots import NewConcept, SnapshotChanges
from tests.worker.computing.scene import BRIEF, CONCEPTS, TOLERANT, Scene, World, version
from tests.worker.threads import single_thread
from worker.curvature.storage import load_factors
from worker.tasks import Result

NAME = "left"
KINDS = ("addition", "mixture")


def left_of(scene: Scene, splits: tuple[int, ...] = (0, 1, 2)) -> NewConcept:
    """Whether anything is bright on the left, of every row of the given splits."""
    shown = scene.truth[:, 0] | scene.truth[:, 2]
    rows = np.flatnonzero(np.isin(scene.snapshot.splits, splits))
    return NewConcept(NAME, tuple((int(scene.snapshot.sample_ids[row]), int(shown[row])) for row in rows))


def changes_of(world: World, kind: str) -> SnapshotChanges:
    new = left_of(world.scene)
    if kind == "addition":
        return SnapshotChanges(new=(new,))
    mixture = world.changes("mixture")
    added = [replace(row, concepts=(*row.concepts, row.concepts[0] | row.concepts[2])) for row in mixture.added]
    return replace(mixture, added=tuple(added), new=(new,))


@pytest.fixture(scope="session")
def extended(world: World) -> dict[str, Result]:
    """Each kind of edit, once. The mixture has as many columns as the base version: it drops one."""
    with single_thread():
        return {kind: world.scene.edit(world.base, changes_of(world, kind), **TOLERANT) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_the_version_has_the_new_column_last(self, world: World, extended: dict[str, Result], kind: str) -> None:
        result = extended[kind]
        assert result.concepts == [*(c for c in CONCEPTS if kind == "addition" or c != "bottom left"), NAME]
        assert world.snapshot(result) == world.scene.snapshot.apply(changes_of(world, kind))
        model, label_predictor = world.predictors(result)
        assert model.head.out_features == label_predictor.weight.shape[1] == len(result.concepts)
        assert result.factors_version == 1
        assert result.factors_digest is not None
        factors = load_factors(world.scene.store.fetch(result.factors_digest), "cpu")
        assert tuple(factors.layers["head"].parameters.weight_shape) == tuple(model.head.weight.shape)

    def test_the_new_concept_is_told_on_rows_never_seen(self, extended: dict[str, Result], kind: str) -> None:
        """On 60 test rows a row is worth 0.01: 0.85 leaves what training, with the same noise, also misses."""
        result = extended[kind]
        assert result.metrics["concepts"].keys() == set(result.concepts)
        assert result.metrics["concepts"][NAME]["rows"] == 60
        assert result.metrics["concepts"][NAME]["f1"] >= 0.85

    def test_scores_before_and_after_are_of_the_same_concepts(self, extended: dict[str, Result], kind: str) -> None:
        result = extended[kind]
        found, kept = result.report["metrics"], [c for c in result.concepts if c != NAME]
        assert list(found["before"]["concepts"]) == list(found["after"]["concepts"]) == kept
        assert found["new_concepts"] == {NAME: result.metrics["concepts"][NAME]}
        mean = np.mean([result.metrics["concepts"][c]["f1"] for c in kept])
        assert found["after"]["concept_f1"] == pytest.approx(mean)
        assert found["after"]["label_f1"] == result.metrics["label_f1"]
        assert found["after"]["concept_f1"] >= found["before"]["concept_f1"] - 0.05
        assert result.report["operations"]["add_concepts"] == 1

    def test_the_same_edit_again_gives_the_same_weights(
        self, world: World, extended: dict[str, Result], kind: str
    ) -> None:
        again = world.scene.edit(world.base, changes_of(world, kind), **TOLERANT)
        assert again.weights_digest == extended[kind].weights_digest

    def test_a_retraining_is_compared_over_what_both_have(
        self, world: World, extended: dict[str, Result], kind: str
    ) -> None:
        result, changes = extended[kind], changes_of(world, kind)
        child = version(result, 2)
        compared: dict[str, Any] = {
            "base": world.base,
            "edited": child,
            "changes": changes.to_json(),
            "report": result.report,
        }
        task = world.scene.task(
            "retrain", base=child, compared=compared, options={"repeats": 2}, training=BRIEF | {"epochs": 10}
        )
        reference = world.scene.run(task)
        comparison = reference.report["comparison"]
        assert comparison["rows"].keys() == result.report["edited_rows"].keys()
        for name, group in comparison["rows"].items():
            for when in ("loss_before", "loss_after"):
                assert group[when] == pytest.approx(result.report["edited_rows"][name][when], rel=1e-5)
        assert comparison["new_concepts"] == {
            NAME: {
                "after": result.metrics["concepts"][NAME]["f1"],
                "retrained": pytest.approx(reference.metrics["concepts"][NAME]["f1"]),
            }
        }
        kept = [c for c in result.concepts if c != NAME]
        mean = np.mean([reference.metrics["concepts"][c]["f1"] for c in kept])
        assert comparison["metrics"]["concept_f1"]["retrained"] == pytest.approx(mean)
        assert comparison["metrics"]["concept_f1"]["after"] == result.report["metrics"]["after"]["concept_f1"]
        assert comparison["mean_abs_dp"]["floor"] is not None


def test_rows_of_a_mixture_are_measured_by_the_kept_concepts(world: World, extended: dict[str, Result]) -> None:
    """As the same mixture without the new concept measures them under the base version."""
    plain = world.scene.edit(world.base, world.changes("mixture"), **TOLERANT)
    groups = extended["mixture"].report["edited_rows"]
    assert groups.keys() == plain.report["edited_rows"].keys()
    for name, group in groups.items():
        assert group["loss_before"] == pytest.approx(plain.report["edited_rows"][name]["loss_before"], rel=1e-5)


def test_the_new_concept_is_edited_like_any_other(world: World, extended: dict[str, Result]) -> None:
    """Ten train rows say the opposite of what they say now; later the concept goes, and may come again."""
    child = version(extended["addition"], 2)
    snapshot = world.snapshot(extended["addition"])
    rows = snapshot.rows("train")[:10]
    fixes = tuple((int(snapshot.sample_ids[row]), 4, 1 - int(snapshot.concepts[row, 4])) for row in rows)
    result = world.scene.edit(child, SnapshotChanges(fixes=fixes), **TOLERANT)
    assert result.report["edited_rows"]["fixed"]["rows"] == 10
    assert result.report["edited_rows"]["fixed"]["loss_after"] < result.report["edited_rows"]["fixed"]["loss_before"]
    assert world.snapshot(result) == snapshot.apply(SnapshotChanges(fixes=fixes))
    dropped = world.scene.edit(child, SnapshotChanges(dropped=(4,)), **TOLERANT)
    assert dropped.concepts == CONCEPTS
    again = world.scene.edit(version(dropped, 3), SnapshotChanges(new=(left_of(world.scene),)), **TOLERANT)
    assert again.metrics["concepts"][NAME]["f1"] >= 0.85


def test_missing_factors_are_fitted_in_the_base_version_s_columns(world: World, extended: dict[str, Result]) -> None:
    result = world.scene.edit(version(world.trained), changes_of(world, "addition"), **TOLERANT)
    assert result.report["factors"]["fitted_here"]
    assert result.weights_digest == extended["addition"].weights_digest


def test_the_papers_closed_form_runs_too(world: World) -> None:
    """Where its one step goes farther than is trusted, a training takes its place."""
    options: dict[str, Any] = {"tolerance": {"concept_f1": 1.0, "label_f1": 1.0}, "on_failure": "retrain"}
    changes = changes_of(world, "addition")
    result = world.scene.edit(world.base, changes, method="closed_form", label_solver="closed_form", **options)
    assert result.concepts == [*CONCEPTS, NAME]
    refused = result.report.get("refused", {"code": None})["code"]
    assert (result.report["method"], refused) in {("closed_form", None), ("retrain", "step_too_long")}


def test_a_concept_that_no_held_out_row_knows_has_no_score(world: World) -> None:
    changes = SnapshotChanges(new=(left_of(world.scene, splits=(0,)),))
    result = world.scene.edit(world.base, changes, **TOLERANT)
    assert result.concepts == [*CONCEPTS, NAME]
    assert result.metrics["concepts"].keys() == set(CONCEPTS)
    assert result.report["metrics"]["new_concepts"] == {NAME: None}


def test_a_refused_edit_may_become_a_training(world: World) -> None:
    """Without the concept that tells the classes apart, whatever else comes."""
    changes = SnapshotChanges(dropped=(0,), new=(NewConcept("right", left_of(world.scene).labels[:40]),))
    strict: dict[str, Any] = {"tolerance": {"concept_f1": 0.0, "label_f1": 0.0}}
    result = world.scene.edit(world.base, changes, on_failure="retrain", **strict)
    direct = world.scene.train(snapshot_digest=result.snapshot_digest, concepts=result.concepts)
    assert result.report["method"] == "retrain"
    assert result.weights_digest == direct.weights_digest
    assert result.concepts == [*CONCEPTS[1:], "right"]
