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
from worker.cbm.training import predict_logits
from worker.computing.frame import Frame
from worker.computing.measuring import edited_rows, membership
from worker.computing.training import train_both
from worker.computing.workbench import Workbench, metrics
from worker.tasks import Result, TaskFailure


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
    models, measured, seconds = [], [], []
    for r, seed in enumerate(seeds):
        start = time.perf_counter()
        model, label_predictor, _ = train_both(
            bench, rows["train"], rows["calibration"], seed, "retraining", (r, repeats)
        )
        measured.append(metrics(model, label_predictor, rows["test"], task.base.concepts))
        seconds.append(time.perf_counter() - start)
        models.append(model)
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


def _comparison(bench: Workbench, models: list[ConceptPredictor], measured: list[dict[str, Any]]) -> dict[str, Any]:
    compared = bench.task.compared
    if compared is None:
        raise TaskFailure("nothing_to_compare", "no edit made this version")
    base, edited_version = compared["base"], compared["edited"]
    changes = SnapshotChanges.from_json(compared["changes"])
    # Rows may have been erased since; what cannot be looked at any more is left out of the comparison.
    erased = {i for i in changes.removed if not bench.store.image_path(bench.task.dataset_id, i).exists()}
    snapshot = bench.snapshot(base.snapshot_digest).apply(SnapshotChanges(removed=tuple(sorted(erased))))
    changes = replace(changes, removed=tuple(sorted(set(changes.removed) - erased)))
    frame = Frame(bench, base.concepts, snapshot, changes)
    before, _ = bench.model(base)
    edited, _ = bench.model(edited_version)
    known = {"before": before, "after": edited}
    references = [edited_rows(frame, {"retrained": model}) for model in models]
    groups = edited_rows(frame, known)
    for name, group in groups.items():
        group["loss_retrained"] = float(np.mean([reference[name]["loss_retrained"] for reference in references]))
        group["closure"] = closure(group["loss_before"], group["loss_after"], group["loss_retrained"])
    attack = membership(frame, known)
    if attack is not None:
        attacks = [membership(frame, {"retrained": model}) for model in models]
        attack["auc_retrained"] = float(np.mean([a["auc_retrained"] for a in attacks if a is not None]))
    report = compared["report"].get("metrics", {})
    return {
        "base_version": base.number,
        "version": edited_version.number,
        "rows": groups,
        "erased_rows": len(erased),
        "membership": attack,
        "metrics": {
            name: {
                "before": report.get("before", base.metrics)[name],
                "after": edited_version.metrics[name],
                "retrained": float(np.mean([m[name] for m in measured])),
            }
            for name in ("concept_f1", "label_f1")
        },
        "mean_abs_dp": _distances(frame, edited, models),
    }


def _distances(frame: Frame, edited: ConceptPredictor, models: list[ConceptPredictor]) -> dict[str, float | None]:
    """Mean |Δp| on test rows: of the edited model to the retrained ones, and between those (the floor)."""

    def probabilities(model: ConceptPredictor) -> torch.Tensor:
        return torch.sigmoid(predict_logits(model, frame.test_after.images))

    retrained = [probabilities(model) for model in models]
    mine = probabilities(edited)
    between = [
        float((first - second).abs().mean()) for i, first in enumerate(retrained) for second in retrained[i + 1 :]
    ]
    return {
        "edited": float(np.mean([float((mine - p).abs().mean()) for p in retrained])),
        "floor": float(np.mean(between)) if between else None,
    }
