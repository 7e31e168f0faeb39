"""Training anew on a version's data: the reference against which an edit is measured. Makes no version."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from app.datasets.snapshots import SnapshotChanges
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.computing.frame import Frame
from worker.computing.measuring import Measured, audited, claim_of, edited_groups, edited_rows, membership
from worker.computing.references import trained_references
from worker.computing.training import train_both
from worker.computing.workbench import Workbench, metrics
from worker.tasks import Result, TaskFailure

Predictors = tuple[ConceptPredictor, LabelPredictor]


def retrain(bench: Workbench) -> Result:
    """Train ``repeats`` times with successive seeds; the figures are means over the repetitions."""
    task = bench.task
    if task.base is None:
        raise RuntimeError("a retraining has a version")
    bench.progress("loading", 0, 1)
    snapshot = bench.snapshot(task.base.snapshot_digest)
    rows = {split: bench.rows(snapshot, split) for split in ("train", "calibration", "test")}
    repeats = int(task.options.get("repeats", 1))
    seeds = [task.seed + r for r in range(repeats)]
    models: list[Predictors] = []
    measured, seconds = [], []
    for r, seed in enumerate(seeds):
        start = time.perf_counter()
        model, label_predictor, _ = train_both(
            bench, rows["train"], rows["calibration"], seed, "retraining", (r, repeats)
        )
        measured.append(metrics(model, label_predictor, rows["test"], task.base.concepts))
        seconds.append(time.perf_counter() - start)
        models.append((model, label_predictor))
    bench.progress("evaluating", 0, 1)
    mean = mean_metrics(measured)
    return Result(
        concepts=task.base.concepts,
        publishes=False,
        metrics=mean,
        report={
            "kind": "retrain",
            "device": bench.device,
            "version": task.base.number,
            "seeds": seeds,
            "metrics": mean,
            "seconds": sum(seconds) / repeats,
            "total_seconds": sum(seconds),
            "comparison": None if task.compared is None else _comparison(bench, models, measured),
        },
    )


def mean_metrics(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of metrics of the same shape."""
    scalars = ("concept_f1", "concept_accuracy", "label_f1", "label_accuracy")
    return {
        **{name: float(np.mean([m[name] for m in measured])) for name in scalars},
        "concepts": {
            concept: {name: float(np.mean([m["concepts"][concept][name] for m in measured])) for name in values}
            for concept, values in measured[0]["concepts"].items()
        },
        "rows": measured[0]["rows"],
    }


def closure(before: float, after: float, retrained: float) -> float | None:
    """``(edited − before)/(retrained − before)``; None where retraining changes nothing to speak of."""
    return None if abs(retrained - before) < 1e-6 else (after - before) / (retrained - before)


def _comparison(bench: Workbench, retrained: list[Predictors], measured: list[dict[str, Any]]) -> dict[str, Any]:
    compared = bench.task.compared
    if compared is None:
        raise TaskFailure("nothing_to_compare", "no edit made this version")
    base, edited_version = compared["base"], compared["edited"]
    changes = SnapshotChanges.from_json(compared["changes"])
    # Rows may have been erased since; what cannot be looked at any more is left out of the comparison.
    erased = {i for i in changes.removed if not bench.store.image_path(bench.task.dataset_id, i).exists()}
    snapshot = bench.snapshot(base.snapshot_digest).without(sorted(erased))
    changes = replace(changes, removed=tuple(sorted(set(changes.removed) - erased)))
    frame = Frame(bench, base.concepts, snapshot, changes)
    evidence = _evidence_of(compared["report"])
    references = None
    if evidence["level"] == "full" and len(frame.train.removed):
        references = trained_references(bench, frame, evidence["reference_models"], evidence["seed"])
        bench.progress("evaluating", 0, 1)
    groups = edited_groups(frame)
    before = Measured(frame, groups, *bench.model(base), edited=False)
    after = Measured(frame, groups, *bench.model(edited_version), edited=True)
    anew = [Measured(frame, groups, *both, edited=True) for both in retrained]
    rows = edited_rows(groups, {"before": before, "after": after})
    for name, group in rows.items():
        group.update(_closures(group, [model.mean_loss(name) for model in anew]))
    found = audited(
        frame,
        {"before": [before], "after": [after], "retrained": anew},
        level=evidence["level"],
        seed=evidence["seed"],
        references=references,
        claim=claim_of(bench.task.training),
    )
    report = compared["report"].get("metrics", {})
    measures = [one.test_metrics(edited_version.concepts, shared=True) for one in anew]
    return {
        "base_version": base.number,
        "version": edited_version.number,
        "rows": rows,
        "erased_rows": len(erased),
        "membership": membership(found),
        "evidence": found,
        "metrics": {
            name: {
                "before": report.get("before", base.metrics)[name],
                "after": report.get("after", edited_version.metrics)[name],
                "retrained": float(np.mean([m[name] for m in measures])),
            }
            for name in ("concept_f1", "label_f1")
        },
        "new_concepts": {
            concept.name: {
                "after": _f1(edited_version.metrics, concept.name),
                "retrained": _mean_f1(measured, concept.name),
            }
            for concept in changes.new
        },
        "mean_abs_dp": _distances(after, anew),
    }


def _f1(metrics: dict[str, Any], concept: str) -> float | None:
    """None where no test row's label is known."""
    found = metrics["concepts"].get(concept)
    return None if found is None else float(found["f1"])


def _mean_f1(measured: Sequence[dict[str, Any]], concept: str) -> float | None:
    found = [f1 for one in measured if (f1 := _f1(one, concept)) is not None]
    return float(np.mean(found)) if found else None


def _evidence_of(report: dict[str, Any]) -> dict[str, Any]:
    """How much evidence the edit had, so that the comparison has as much; edits of old say nothing."""
    evidence = report.get("evidence") or {}
    rmia = evidence.get("rmia") or {}
    return {
        "level": evidence.get("level", "standard"),
        "seed": rmia.get("seed", 0),
        "reference_models": rmia.get("reference_models", 0),
    }


def _closures(group: dict[str, Any], retrained: list[float]) -> dict[str, float | None]:
    """The edit's closure, and how far from 1 one retraining's own is against the mean of the others (the floor)."""
    before, mean = group["loss_before"], float(np.mean(retrained))
    own = (
        [closure(before, one, float(np.mean(retrained[:r] + retrained[r + 1 :]))) for r, one in enumerate(retrained)]
        if len(retrained) > 1
        else []
    )
    apart = [abs(one - 1) for one in own if one is not None]
    return {
        "loss_retrained": mean,
        "closure": closure(before, group["loss_after"], mean),
        "closure_floor": float(np.mean(apart)) if apart else None,
    }


def _distances(after: Measured, anew: list[Measured]) -> dict[str, float | None]:
    """Mean |Δp| on test rows: of the edited model to the retrained ones, and between those (the floor)."""
    mine, *retrained = (torch.sigmoid(model.test_logits) for model in (after, *anew))
    between = [
        float((first - second).abs().mean()) for i, first in enumerate(retrained) for second in retrained[i + 1 :]
    ]
    return {
        "edited": float(np.mean([float((mine - p).abs().mean()) for p in retrained])),
        "floor": float(np.mean(between)) if between else None,
    }
