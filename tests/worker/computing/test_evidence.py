"""Evidence as part of an edit and of its comparison: what it rests on, what it costs, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import NewConcept, SnapshotChanges
from tests.worker.computing.scene import BRIEF, CONCEPTS, TOLERANT, TRAINING, World, version
from tests.worker.threads import single_thread
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses, predict_logits
from worker.computing import measuring, references
from worker.computing.training import train_both
from worker.computing.workbench import Workbench
from worker.data.tensors import LabelledImages
from worker.evidence.membership import loss_attack_auc
from worker.tasks import Result


def edit(world: World, changes: SnapshotChanges, **options: Any) -> Result:
    task = world.scene.task(
        "edit", base=world.base, changes=changes.to_json(), options={**TOLERANT, **options}, training=BRIEF
    )
    return world.scene.run(task)


def retraining(world: World, result: Result, changes: SnapshotChanges) -> Result:
    child = version(result, 2)
    compared = {"base": world.base, "edited": child, "changes": changes.to_json(), "report": result.report}
    options = {"repeats": 2}
    return world.scene.run(world.scene.task("retrain", base=child, compared=compared, options=options, training=BRIEF))


@pytest.fixture(scope="session")
def removal(world: World) -> SnapshotChanges:
    """Fifty-five rows: enough for verdicts."""
    return SnapshotChanges(removed=tuple(world.scene.ids("train")[:55]))


@pytest.fixture(scope="session")
def standard(world: World, removal: SnapshotChanges) -> Result:
    with single_thread():
        return edit(world, removal)


@pytest.fixture(scope="session")
def full(world: World, removal: SnapshotChanges) -> Result:
    with single_thread():
        return edit(world, removal, evidence="full", reference_models=2)


def test_the_loss_attacks_are_those_on_both_outputs(world: World, removal: SnapshotChanges, standard: Result) -> None:
    """Against areas computed here, from the published weights."""
    evidence = standard.report["evidence"]
    assert (evidence["level"], evidence["claim"], evidence["rmia"]) == ("standard", "approximate, audited", None)
    assert (evidence["members"], evidence["non_members"]) == (55, 60)
    assert evidence["attacks"].keys() == {"loss"}
    rows, test = world.rows(world.scene.snapshot), world.rows(world.scene.snapshot, "test")
    removed = rows.take(torch.isin(rows.sample_ids, torch.tensor(removal.removed)))
    for when, result in (("before", world.trained), ("after", standard)):
        model, label_predictor = world.predictors(result)

        def losses(some: LabelledImages, model: ConceptPredictor = model, by: Any = label_predictor) -> list[Tensor]:
            logits = predict_logits(model, some.images)
            classes = torch.log_softmax(by.logits(torch.sigmoid(logits)), dim=1)
            return [concept_losses(logits.double(), some.concepts), -classes[torch.arange(len(some)), some.classes]]

        for output, members, others in zip(("concepts", "label"), losses(removed), losses(test), strict=True):
            reading = evidence["attacks"]["loss"][output][when]
            assert reading["auc"] == pytest.approx(loss_attack_auc(members.numpy(), others.numpy()), abs=1e-3)
            low, high = reading["interval"]
            assert low < reading["auc"] < high
            assert (reading["members"], reading["non_members"], reading["models"]) == (55, 60, 1)
            assert [point["tpr"] for point in reading["tpr"]] == [None, None]
            assert reading["tpr"][0]["reason"].startswith("60 non-members cannot show")
    short = standard.report["membership"]
    assert short == {
        "attack": "loss",
        "members": 55,
        "non_members": 60,
        "auc_before": evidence["attacks"]["loss"]["concepts"]["before"]["auc"],
        "auc_after": evidence["attacks"]["loss"]["concepts"]["after"]["auc"],
    }


@pytest.mark.parametrize("level", ["none", "standard", "full"])
def test_every_row_passes_once_through_either_model(world: World, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Whatever is read from it: metrics, losses of edited rows, attacks."""
    passed: list[int] = []

    def counted(model: ConceptPredictor, images: Tensor) -> Tensor:
        passed.append(len(images))
        return predict_logits(model, images)

    monkeypatch.setattr(measuring, "predict_logits", counted)
    edit(world, world.changes("mixture"), evidence=level)
    fixed = len({row for row, concept, _ in world.changes("mixture").fixes if concept != 2})
    assert sorted(passed) == sorted(2 * [60, 8, 10, fixed])


def test_full_evidence_adds_rmia(world: World, standard: Result, full: Result) -> None:
    evidence = full.report["evidence"]
    assert full.weights_digest == standard.weights_digest
    assert evidence["attacks"]["loss"] == standard.report["evidence"]["attacks"]["loss"]
    assert evidence["rmia"] == {
        "seed": 0,
        "population": 30,
        "non_members": 30,
        "reference_models": 2,
        "mode": "online",
        "offline_a": None,
        "gamma": 1.0,
        "softening": "concepts: geometric mean over a row's known concepts",
        "trained_on": {"kept_rows": 65, "candidates": [57, 58]},
        "storage": "held in memory only and discarded with this job, because reference models may have learned removed "
        "rows",
    }
    for output in ("concepts", "label"):
        for attack in ("rmia", "loss_on_rmia_rows"):
            readings = evidence["attacks"][attack][output]
            assert readings.keys() == {"before", "after"}
            assert {(r["members"], r["non_members"]) for r in readings.values()} == {(55, 30)}
    assert ("reference_models", 8, 8) in world.scene.reports
    assert 0 < full.report["timings"]["reference_models"] < full.report["seconds"]
    assert "reference_models" not in standard.report["timings"]


def test_references_change_what_rmia_says(world: World, removal: SnapshotChanges, full: Result) -> None:
    """Without any it orders rows as the loss attack does; with one it is offline, and says with which a."""
    none, one = (edit(world, removal, evidence="full", reference_models=count) for count in (0, 1))
    rmia = none.report["evidence"]["rmia"]
    assert (rmia["mode"], rmia["reference_models"], rmia["trained_on"]) == ("population_only", 0, None)
    rmia = one.report["evidence"]["rmia"]
    assert (rmia["mode"], rmia["offline_a"], rmia["trained_on"]["candidates"]) == ("offline", 0.3, [0])
    areas = [result.report["evidence"]["attacks"]["rmia"]["label"]["before"]["auc"] for result in (none, one, full)]
    assert len(set(areas)) == 3
    loss = none.report["evidence"]["attacks"]["loss_on_rmia_rows"]["label"]["before"]["auc"]
    assert areas[0] == pytest.approx(loss, abs=0.05)  # ties of 30 population rows


def test_nothing_of_the_references_is_stored(own_world: World, removal: SnapshotChanges) -> None:
    assert isinstance(own_world.scene.store, LocalArtifactStore)
    root: Path = own_world.scene.store.root

    def files() -> set[Path]:
        return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}

    edit(own_world, removal)
    before = files()
    again = edit(own_world, removal, evidence="full", reference_models=2)
    assert len(again.report["evidence"]["attacks"]) == 3
    assert files() == before


def test_who_is_in_whose_data(world: World, removal: SnapshotChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept train rows in all, every candidate in half, calibration rows in none, removed rows as they were."""
    trained: list[LabelledImages] = []
    seeds: list[int] = []

    def watched(bench: Workbench, rows: LabelledImages, calibration: LabelledImages, seed: int, *rest: Any) -> Any:
        trained.append(rows)
        seeds.append(seed)
        assert calibration.sample_ids.tolist() == world.scene.ids("calibration")
        return train_both(bench, rows, calibration, seed, *rest)

    monkeypatch.setattr(references, "train_both", watched)
    changes = SnapshotChanges(removed=removal.removed, dropped=(3,))
    edit(world, changes, evidence="full", reference_models=4)
    assert len(trained) == len(set(seeds)) == 4
    ids = [rows.sample_ids.tolist() for rows in trained]
    assert all(len(some) == len(set(some)) for some in ids)
    kept, test = set(world.scene.ids("train")) - set(changes.removed), world.scene.ids("test")
    assert all(kept <= set(some) for some in ids)
    for candidate in (*changes.removed, *test):
        assert sum(candidate in some for some in ids) == 2
    assert not set(world.scene.ids("calibration")) & set().union(*ids)
    labels = world.scene.snapshot
    for rows in trained:
        position = np.searchsorted(labels.sample_ids, rows.sample_ids.numpy())
        assert (rows.concepts.numpy() == labels.concepts[position][:, :3]).all()


def test_a_comparison_has_as_much_evidence_as_its_edit(
    world: World, removal: SnapshotChanges, standard: Result, full: Result
) -> None:
    """The same split and the same references, trained again: of the same models it says the same."""
    for result in (standard, full):
        comparison = retraining(world, result, removal).report["comparison"]
        mine, theirs = comparison["evidence"], result.report["evidence"]
        assert mine["rmia"] == theirs["rmia"]
        assert mine["attacks"].keys() == theirs["attacks"].keys()
        for attack, outputs in mine["attacks"].items():
            for output, readings in outputs.items():
                assert readings["retrained"]["models"] == 2
                for when in ("before", "after"):
                    assert readings[when] == theirs["attacks"][attack][output][when]
        assert comparison["membership"]["auc_retrained"] == mine["attacks"]["loss"]["concepts"]["retrained"]["auc"]
        floor = comparison["rows"]["removed"]["closure_floor"]
        assert floor >= 0
        assert comparison["mean_abs_dp"]["floor"] > 0


def test_concepts_that_one_side_lacks_are_not_attacked_by(world: World) -> None:
    """One dropped, one new: models are attacked on the other three, references have the edited version's columns."""
    snapshot = world.scene.snapshot
    new = NewConcept("left", tuple((int(row), int(row % 2)) for row in snapshot.sample_ids))
    changes = SnapshotChanges(removed=tuple(world.scene.ids("train")[:12]), dropped=(3,), new=(new,))
    result = edit(world, changes, evidence="full", reference_models=2, tolerance={"concept_f1": 1.0, "label_f1": 1.0})
    assert result.concepts == [*CONCEPTS[:3], "left"]
    model, _ = world.predictors(result)
    rows, test = world.rows(snapshot), world.rows(snapshot, "test")
    members, others = (
        concept_losses(predict_logits(model, some.images)[:, :3], some.concepts[:, :3])
        for some in (rows.take(torch.isin(rows.sample_ids, torch.tensor(changes.removed))), test)
    )
    found = result.report["evidence"]["attacks"]
    assert found["loss"]["concepts"]["after"]["auc"] == pytest.approx(
        loss_attack_auc(members.numpy(), others.numpy()), abs=1e-3
    )
    assert found["rmia"].keys() == {"concepts", "label"}


def test_references_are_not_trained_for_nothing(world: World) -> None:
    start = len(world.scene.reports)
    result = edit(world, world.changes("fix"), evidence="full", reference_models=2)
    evidence = result.report["evidence"]
    assert (evidence["members"], evidence["attacks"], evidence["rmia"], evidence["findings"]) == (0, {}, None, [])
    assert result.report["membership"] is None
    assert "reference_models" not in {stage for stage, _, _ in world.scene.reports[start:]}


def test_a_handful_of_rows_gets_an_interval_and_no_verdict(world: World) -> None:
    result = edit(world, SnapshotChanges(removed=tuple(world.scene.ids("train")[:3])))
    assert [finding["code"] for finding in result.report["evidence"]["findings"]] == ["few_rows"]


def test_rows_without_labels_are_not_attacked_by_them(own_world: World) -> None:
    """Three of ten removed rows have no concept label: their loss of 0 would look like a perfect memory."""
    scene = own_world.scene
    ids = scene.ids("train")[:10]
    unknown = SnapshotChanges(fixes=tuple((row, j, -1) for row in ids[:3] for j in range(4)))
    blank = scene.snapshot.apply(SnapshotChanges(fixes=tuple(fix for fix in unknown.fixes if _known(scene, fix))))
    scene.store.put(blank.to_bytes())
    base = version(own_world.trained, factors=own_world.fitted)
    base = type(base)(**(vars(base) | {"snapshot_digest": blank.digest}))
    changes = SnapshotChanges(removed=tuple(ids)).to_json()
    result = scene.run(scene.task("edit", base=base, changes=changes, options=TOLERANT, training=TRAINING))
    loss = result.report["evidence"]["attacks"]["loss"]
    assert loss["concepts"]["after"]["members"] == 7
    assert loss["label"]["after"]["members"] == result.report["membership"]["members"] == 10


def _known(scene: Any, fix: tuple[int, int, int]) -> bool:
    snapshot = scene.snapshot
    return bool(snapshot.concepts[snapshot.sample_ids == fix[0]][0, fix[1]] >= 0)
