"""Edits as jobs: what they publish, that they repeat, when they are refused, and what they leave behind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from app.datasets.snapshots import SPLITS, UNKNOWN, SnapshotChanges
from tests.worker.computing.scene import (
    BRIEF,
    CONCEPTS,
    DATASET,
    KINDS,
    TOLERANT,
    TRAINING,
    World,
    version,
)
from tests.worker.threads import single_thread
from worker.cbm.label_predictor import LabelObjective
from worker.cbm.training import concept_losses, predict_logits
from worker.computing import workbench
from worker.curvature.storage import load_factors
from worker.tasks import Result, TaskFailure

DROPPED = {"drop": ["top left", "top right", "bottom left"], "mixture": ["top left", "top right", "bottom right"]}


@pytest.fixture(scope="session")
def edits(world: World) -> dict[str, Result]:
    """Each kind of edit of version 1, once."""
    with single_thread():
        return {kind: world.scene.edit(world.base, world.changes(kind), **TOLERANT) for kind in KINDS}


def losses(world: World, result: Result, ids: list[int], like: Result) -> float:
    """Mean concept loss of rows with the labels they have in ``like``'s data, over the concepts of ``result``."""
    snapshot = world.snapshot(like)
    rows = world.rows(snapshot)
    chosen = rows.take(torch.isin(rows.sample_ids, torch.tensor(ids)))
    columns = [like.concepts.index(name) for name in result.concepts]
    model, _ = world.predictors(result)
    return float(concept_losses(predict_logits(model, chosen.images), chosen.concepts[:, columns]).mean())


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_the_data_set_is_the_base_version_s_with_the_changes(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        expected = world.scene.snapshot.apply(world.changes(kind))
        assert edits[kind].publishes
        assert edits[kind].snapshot_digest == expected.digest
        assert world.snapshot(edits[kind]) == expected

    def test_the_model_has_the_columns_that_are_kept(self, world: World, edits: dict[str, Result], kind: str) -> None:
        result = edits[kind]
        assert result.concepts == DROPPED.get(kind, CONCEPTS)
        model, label_predictor = world.predictors(result)
        assert model.head.out_features == label_predictor.weight.shape[1] == len(result.concepts)
        assert result.metrics["concepts"].keys() == set(result.concepts)
        assert result.weights_digest != world.trained.weights_digest

    def test_the_label_predictor_is_converged_on_the_edited_rows(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        model, label_predictor = world.predictors(edits[kind])
        rows = world.rows(world.snapshot(edits[kind]))
        probabilities = torch.sigmoid(predict_logits(model, rows.images))
        objective = LabelObjective(probabilities, rows.classes, 3, TRAINING["label_weight_decay"])
        theta = torch.cat([label_predictor.weight, label_predictor.bias[:, None]], dim=1)
        assert float(objective.gradient(theta).abs().max()) <= 1e-8

    def test_factors_are_inherited_and_cut_to_the_kept_columns(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        result = edits[kind]
        assert result.factors_version == 1
        assert result.factors_digest is not None
        assert result.report["factors"] == {"fitted_here": False, "version": 1, "age": 0, "refreshed": False}
        if kind not in DROPPED:
            assert result.factors_digest == world.fitted.factors_digest
        factors = load_factors(world.scene.store.fetch(result.factors_digest), "cpu")
        model, _ = world.predictors(result)
        shape = tuple(factors.layers["head"].parameters.weight_shape)
        assert shape == tuple(model.head.weight.shape)
        assert set(factors.parameter_names) == dict(model.named_parameters()).keys()

    def test_the_report_says_what_was_done(self, world: World, edits: dict[str, Result], kind: str) -> None:
        """That all its numbers are finite was shown by its way through JSON."""
        report, changes = edits[kind].report, world.changes(kind)
        assert report["kind"] == "edit"
        assert report["method"] == "solve"
        assert report["operations"] == {
            name: count
            for name, count in {
                "fix_concept_labels": len(changes.fixes),
                "drop_concepts": len(changes.dropped),
                "remove_samples": len(changes.removed),
                "add_samples": len(changes.added),
            }.items()
            if count
        }
        assert report["metrics"]["after"] == edits[kind].metrics
        assert report["metrics"]["before"]["concepts"].keys() == set(edits[kind].concepts)
        assert report["seeds"] == {"edit": 0, "factors": 0}
        assert report["libraries"].keys() == {"torch", "python", "modelmend"}
        step = report["step"]
        assert step["damping"] > 0
        assert step["gradient_norm"].keys() == {"before", "after"}
        assert 0 <= step["relative_norm"] < 1
        assert (step["norm"] > 0) == any(one["scale"] for one in step["steps"])
        assert step["curvature_rows"] == (64 if kind in ("remove", "drop") else 96)
        assert step["iterations"] == sum(one["iterations"] for one in step["steps"])
        assert (step["iterations"] > 0) == (kind != "drop")
        assert report["seconds"] >= sum(report["timings"].values()) - 1e-6
        assert report["timings"].keys() >= {"loading", "label_predictor", "evaluating"}

    def test_metrics_before_are_those_of_the_base_version(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        before = edits[kind].report["metrics"]["before"]
        for concept, scores in before["concepts"].items():
            assert scores == world.trained.metrics["concepts"][concept]
        assert before["label_f1"] == world.trained.metrics["label_f1"]

    def test_edited_rows_are_measured_under_both_models(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        groups, changes = edits[kind].report["edited_rows"], world.changes(kind)
        ids = {
            "removed": list(changes.removed),
            "fixed": sorted({row for row, concept, _ in changes.fixes if concept not in changes.dropped}),
            "added": [row.sample_id for row in changes.added],
        }
        assert groups.keys() == {name for name, rows in ids.items() if rows}
        for name, group in groups.items():
            assert group["rows"] == len(ids[name])
            labels = world.trained if name == "removed" else edits[kind]
            assert group["loss_after"] == pytest.approx(losses(world, edits[kind], ids[name], labels), rel=1e-5)
        if "removed" in groups:
            membership = edits[kind].report["membership"]
            assert (membership["members"], membership["non_members"]) == (len(changes.removed), 60)
            assert 0 <= membership["auc_after"] < membership["auc_before"] <= 1
        else:
            assert edits[kind].report["membership"] is None

    def test_the_same_edit_again_gives_the_same_weights(
        self, world: World, edits: dict[str, Result], kind: str
    ) -> None:
        again = world.scene.edit(world.base, world.changes(kind), **TOLERANT)
        assert again.weights_digest == edits[kind].weights_digest
        assert again.factors_digest == edits[kind].factors_digest

    def test_the_papers_closed_form_runs_too(self, world: World, kind: str) -> None:
        anything: dict[str, Any] = {"tolerance": {"concept_f1": 1.0, "label_f1": 1.0}}
        result = world.scene.edit(
            world.base, world.changes(kind), method="closed_form", label_solver="closed_form", **anything
        )
        assert result.report["method"] == "closed_form"
        assert [step["phase"] for step in result.report["step"]["steps"]] == ["closed_form"]
        assert result.report["factors"] == {"fitted_here": True, "version": 1, "age": 0, "refreshed": False}
        assert result.snapshot_digest == world.scene.snapshot.apply(world.changes(kind)).digest
        world.predictors(result)


class TestEffect:
    """That rows end where they should, on a problem small enough to overfit: removed rows' loss is a third of unseen
    rows'. Ten per cent either way: bisections stop within a thousandth of a level, and a step more is taken only
    where one ends outside three to five per cent."""

    def test_corrected_and_added_rows_become_like_training_rows(self, edits: dict[str, Result]) -> None:
        for kind, name in (("fix", "fixed"), ("add", "added")):
            group, steps = edits[kind].report["edited_rows"][name], edits[kind].report["step"]["steps"]
            level = steps[0]["level"]
            assert level < 0.75 * group["loss_before"]
            assert 0.5 < (group["loss_before"] - group["loss_after"]) / (group["loss_before"] - level) < 1.3

    def test_removed_rows_become_like_unseen_rows(self, edits: dict[str, Result]) -> None:
        group, steps = edits["remove"].report["edited_rows"]["removed"], edits["remove"].report["step"]["steps"]
        level = steps[0]["level"]
        assert level > 2 * group["loss_before"]
        assert 0.9 * level <= group["loss_after"] <= 1.1 * level

    def test_withdrawn_labels_become_like_labels_never_given(self, world: World) -> None:
        """Wrong ones, which the model had memorised: once forgotten, it contradicts them. Models trained without them
        do so more, at a loss of 3.1; the movement alone stops at its level, and comes 0.47–0.80 of the way on four
        scenes. What the concepts gain shows on test rows."""
        wrong = world.scene.wrong_labels(24).fixes
        changes = SnapshotChanges(fixes=tuple((row, concept, UNKNOWN) for row, concept, _ in wrong))
        report = world.scene.edit(world.base, changes, **TOLERANT).report
        assert report["edited_rows"].keys() == {"withdrawn"}
        group, steps = report["edited_rows"]["withdrawn"], report["step"]["steps"]
        (step,) = (step for step in steps if step["phase"] == "withdraw")
        assert group["rows"] == len({row for row, _, _ in wrong})
        assert step["level"] > 3 * group["loss_before"]
        assert 0.9 * step["level"] <= step["loss_after"] <= step["level"]
        assert 0.9 * step["level"] <= group["loss_after"] < 3.1
        assert report["metrics"]["after"]["concept_f1"] >= report["metrics"]["before"]["concept_f1"]

    def test_a_mixture_does_both(self, edits: dict[str, Result]) -> None:
        """Forgetting comes after learning and moves the learned rows a little: corrected and added rows end within
        half of their common level, to which they had to fall from four times as much."""
        groups, steps = edits["mixture"].report["edited_rows"], edits["mixture"].report["step"]["steps"]
        unseen = next(step["level"] for step in steps if step["phase"] == "forget")
        assert 0.9 * unseen <= groups["removed"]["loss_after"] <= 1.1 * unseen
        level = next(step["level"] for step in steps if step["phase"] == "learn")
        learned = [groups[name] for name in ("fixed", "added")]
        rows = sum(group["rows"] for group in learned)
        start, end = (sum(g["rows"] * g[f"loss_{when}"] for g in learned) / rows for when in ("before", "after"))
        assert start > 4 * level
        assert 0.5 * level < end < 1.5 * level

    def test_dropping_costs_the_kept_concepts_nothing(self, edits: dict[str, Result]) -> None:
        metrics = edits["drop"].report["metrics"]
        assert metrics["after"]["concept_f1"] >= metrics["before"]["concept_f1"] - 0.02


class TestFactorsOfAnEdit:
    def test_missing_factors_are_fitted_on_the_base_version(self, world: World, edits: dict[str, Result]) -> None:
        bare = version(world.trained)
        result = world.scene.edit(bare, world.changes("fix"), **TOLERANT)
        assert result.report["factors"] == {"fitted_here": True, "version": 1, "age": 0, "refreshed": False}
        assert result.factors_digest == world.fitted.factors_digest
        assert result.factors_version == 1
        assert result.weights_digest == edits["fix"].weights_digest

    def test_edits_follow_each_other(self, world: World, edits: dict[str, Result]) -> None:
        """On the child of a drop: its factors were cut, its columns are fewer."""
        child = version(edits["drop"], 2)
        assert child.factors_version == 1
        train = world.scene.ids("train")
        changes = SnapshotChanges(removed=tuple(train[30:40]), dropped=(2,))
        result = world.scene.edit(child, changes, **TOLERANT)
        assert result.concepts == ["top left", "top right"]
        assert result.factors_version == 1
        assert result.snapshot_digest == world.snapshot(edits["drop"]).apply(changes).digest
        assert world.predictors(result)[0].head.out_features == 2


class TestRefusals:
    def emptied_class(self, world: World) -> SnapshotChanges:
        snapshot = world.scene.snapshot
        rows = snapshot.rows("train")
        return SnapshotChanges(removed=tuple(snapshot.sample_ids[rows[snapshot.classes[rows] == 2]].tolist()))

    def test_an_emptied_class_is_named(self, world: World) -> None:
        with pytest.raises(TaskFailure, match="left of: both") as failure:
            world.scene.edit(world.base, self.emptied_class(world))
        assert failure.value.code == "class_emptied"

    def test_utility_that_would_fall_is_refused(self, world: World) -> None:
        """Without the concept that tells the classes apart."""
        with pytest.raises(TaskFailure, match="held-out label_f1 would fall") as failure:
            world.scene.edit(world.base, SnapshotChanges(dropped=(0,)))
        assert failure.value.code == "utility_fell"

    def test_changes_that_do_not_apply_are_told(self, world: World) -> None:
        with pytest.raises(TaskFailure) as failure:
            world.scene.edit(world.base, SnapshotChanges(removed=(9_999,)))
        assert failure.value.code == "edit_no_longer_applies"

    @pytest.mark.parametrize("split", ["train", "calibration", "test"])
    def test_a_split_cannot_be_emptied(self, world: World, split: str) -> None:
        with pytest.raises(TaskFailure, match=f"the {split} split has no rows") as failure:
            world.scene.edit(world.base, SnapshotChanges(removed=tuple(world.scene.ids(split))))
        assert failure.value.code == "empty_split"

    @pytest.mark.parametrize("refused", ["class_emptied", "utility_fell"])
    def test_a_refused_edit_may_become_a_training(self, world: World, refused: str) -> None:
        """The version is the one that training on the edited data set makes, digest for digest."""
        changes = self.emptied_class(world) if refused == "class_emptied" else SnapshotChanges(dropped=(0,))
        result = world.scene.edit(world.base, changes, on_failure="retrain")
        direct = world.scene.train(snapshot_digest=result.snapshot_digest, concepts=result.concepts)
        assert result.publishes
        assert result.weights_digest == direct.weights_digest
        assert result.metrics == direct.metrics
        report = result.report
        assert report["method"] == "retrain"
        assert report["refused"]["code"] == refused
        assert report["calibration"].keys() == {"before", "after"}
        assert report["training"]["epochs_run"] == len(report["training"]["history"])
        # Its curvature has nothing to do with its parent's.
        assert result.factors_digest is None
        assert result.factors_version is None

    def test_a_version_without_rows_of_a_class_goes_on(self, world: World) -> None:
        """It never says that class where it has anything else to say, and is edited like any other."""
        result = world.scene.edit(world.base, self.emptied_class(world), on_failure="retrain")
        assert result.report["classes_without_rows"] == ["both"]
        model, label_predictor = world.predictors(result)
        rows = world.rows(world.scene.snapshot, "test")
        predicted = label_predictor.logits(torch.sigmoid(predict_logits(model, rows.images))).argmax(dim=1)
        assert set(predicted.tolist()) == {0, 1}
        child = version(result, 2)
        kept = [i for i in world.snapshot(result).sample_ids.tolist() if i in set(world.scene.ids("train"))]
        after = world.scene.edit(child, SnapshotChanges(removed=tuple(kept[:5])), **TOLERANT)
        assert after.report["classes_without_rows"] == ["both"]
        assert after.report["factors"]["fitted_here"], "a model trained anew has no factors yet"

    @pytest.mark.parametrize("score", ["concept_f1", "label_f1"])
    def test_each_tolerance_is_a_bound_on_its_own_score(self, world: World, score: str) -> None:
        """Refused by a hair, allowed by a hair: the fall itself is known from a preview."""
        # Without half of its rows the concepts suffer; without the concept that tells them apart, the classes.
        half = tuple(world.scene.ids("train")[:60])
        changes = SnapshotChanges(removed=half) if score == "concept_f1" else SnapshotChanges(dropped=(0,))
        anything = {"concept_f1": 1.0, "label_f1": 1.0}
        task = world.scene.task("preview", base=world.base, changes=changes.to_json(), options={"tolerance": anything})
        seen = world.scene.run(task).report["calibration"]
        fall = seen["before"][score] - seen["after"][score]
        assert fall > 0.001
        result = world.scene.edit(world.base, changes, tolerance=anything | {score: fall + 1e-6})
        assert result.report["calibration"] == seen
        with pytest.raises(TaskFailure, match=f"held-out {score} would fall by {fall:.4f}") as failure:
            world.scene.edit(world.base, changes, tolerance=anything | {score: fall - 1e-6})
        assert failure.value.code == "utility_fell"

    def test_an_edit_that_is_not_refused_is_not_trained(self, world: World, edits: dict[str, Result]) -> None:
        result = world.scene.edit(world.base, world.changes("fix"), on_failure="retrain", **TOLERANT)
        assert result.weights_digest == edits["fix"].weights_digest


class TestWhatIsLeftAlone:
    def test_a_fix_outside_the_train_split_changes_no_concept_weight(self, world: World) -> None:
        snapshot = world.scene.snapshot
        row = int(snapshot.rows("test")[0])
        changes = SnapshotChanges(fixes=((int(snapshot.sample_ids[row]), 0, 1 - abs(int(snapshot.concepts[row, 0]))),))
        result = world.scene.edit(world.base, changes)
        before, after = (world.predictors(of)[0].state_dict() for of in (world.trained, result))
        for name, value in before.items():
            assert torch.equal(after[name], value)
        assert result.report["step"]["steps"] == []
        assert result.report["edited_rows"] == {}
        assert result.snapshot_digest == snapshot.apply(changes).digest

    def test_a_row_may_be_added_to_any_split(self, own_world: World) -> None:
        more = own_world.scene.more(9, first_id=30_000)
        changes = SnapshotChanges(added=tuple(replace(row, split=i % 3) for i, row in enumerate(more.added)))
        result = own_world.scene.edit(own_world.base, changes, **TOLERANT)
        assert result.report["edited_rows"]["added"]["rows"] == 3
        assert result.metrics["rows"] == 63
        assert own_world.snapshot(result).counts == {"train": 123, "calibration": 63, "test": 63}
        assert SPLITS == ("train", "calibration", "test")

    def test_a_removed_row_that_is_also_fixed_is_only_removed(self, world: World, edits: dict[str, Result]) -> None:
        removal = world.changes("remove")
        row = removal.removed[0]
        known = int(world.scene.snapshot.concepts[world.scene.snapshot.sample_ids == row][0, 1])
        assert known != UNKNOWN
        result = world.scene.edit(world.base, replace(removal, fixes=((row, 1, 1 - known),)), **TOLERANT)
        assert result.weights_digest == edits["remove"].weights_digest
        assert result.snapshot_digest == edits["remove"].snapshot_digest
        assert "fixed" not in result.report["edited_rows"]

    def test_evidence_may_be_left_out(self, world: World) -> None:
        result = world.scene.edit(world.base, world.changes("remove"), evidence="none", **TOLERANT)
        assert result.report["membership"] is None


class TestRemovedRows:
    def test_their_images_are_not_needed_afterwards(self, own_world: World) -> None:
        scene, changes = own_world.scene, own_world.changes("remove")
        child = version(scene.edit(own_world.base, changes, **TOLERANT), 2)
        scene.store.delete_images(DATASET, changes.removed)
        workbench.IMAGES.forget(scene.store, DATASET, scene.snapshot.sample_ids.tolist())
        retrained = scene.run(scene.task("retrain", base=child, training=BRIEF))
        assert retrained.metrics["rows"] == 60
        next_ids = tuple(scene.ids("train")[20:25])
        grandchild = scene.edit(child, SnapshotChanges(removed=next_ids), **TOLERANT)
        assert grandchild.report["edited_rows"]["removed"]["rows"] == 5
        assert scene.run(scene.task("fit_factors", base=child)).factors_digest is not None

    def test_no_decoded_copy_is_kept(self, own_world: World) -> None:
        scene, changes = own_world.scene, own_world.changes("remove")
        scene.edit(own_world.base, changes, **TOLERANT)
        scene.store.delete_images(DATASET, scene.snapshot.sample_ids.tolist())
        kept = next(i for i in scene.ids("train") if i not in changes.removed)
        assert workbench.IMAGES.read(scene.store, DATASET, [kept], 8, 1).shape == (1, 1, 8, 8)
        with pytest.raises(FileNotFoundError):
            workbench.IMAGES.read(scene.store, DATASET, [changes.removed[0]], 8, 1)

    def test_batch_norm_holds_what_the_kept_rows_give(self, world: World, edits: dict[str, Result]) -> None:
        """The first BatchNorm's mean is that of the base version's convolution over the kept rows, which may be
        convolved in bfloat16: 0.4% of values of order 0.1."""
        model, _ = world.predictors(world.trained)
        edited, _ = world.predictors(edits["remove"])
        rows = world.rows(world.snapshot(edits["remove"]))
        with torch.no_grad():
            expected = next(model.backbone.children())(rows.images).mean((0, 2, 3))
        torch.testing.assert_close(edited.get_buffer("backbone.1.running_mean"), expected, rtol=0, atol=1e-3)


def test_scores_are_finite_where_a_concept_has_no_known_label(own_world: World) -> None:
    """A concept of which nothing is known any more in the rows that it is measured on."""
    snapshot = own_world.scene.snapshot
    (rows,) = np.nonzero((snapshot.concepts[:, 3] != UNKNOWN) & (snapshot.splits > 0))
    changes = SnapshotChanges(fixes=tuple((int(snapshot.sample_ids[row]), 3, UNKNOWN) for row in rows))
    result = own_world.scene.edit(own_world.base, changes, **TOLERANT)
    assert result.metrics["concepts"].keys() == set(CONCEPTS[:3])
    assert math.isfinite(result.metrics["concept_f1"])
