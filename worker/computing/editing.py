"""An edit as a job: the edited data set, the engine, evidence, and a new version's artifacts."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version as library_version
from typing import Any

import torch

from app.datasets.snapshots import SnapshotChanges
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.computing.factors import fit_on
from worker.computing.frame import Frame
from worker.computing.measuring import edited_rows, membership
from worker.computing.training import train_both
from worker.computing.workbench import Workbench, metrics
from worker.curvature.factors import Factors
from worker.editing.bench import Settings
from worker.editing.engine import EditInput, held_out_metrics
from worker.editing.engine import edit as edit_model
from worker.editing.guard import EditRefused
from worker.tasks import Result, Task, TaskFailure


def edit(bench: Workbench) -> Result:
    """Apply the task's changes to its base version.

    Raises:
        TaskFailure: the changes do not apply, or the guard refused and ``on_failure`` does not allow a retraining.
    """
    task, start = bench.task, time.perf_counter()
    if task.base is None or task.changes is None:
        raise RuntimeError("an edit needs a base version and changes")
    bench.progress("loading", 0, 1)
    changes = SnapshotChanges.from_json(task.changes)
    frame = Frame(bench, task.base.concepts, bench.snapshot(task.base.snapshot_digest), changes)
    model, label_predictor = bench.model(task.base)
    factors, factors_fitted = _factors(bench, model, frame)
    loaded = time.perf_counter()
    given = EditInput(
        model=model,
        label_predictor=label_predictor,
        factors=factors,
        data=frame.train,
        calibration=frame.calibration,
        concepts=task.base.concepts,
        classes=task.base.classes,
        training=task.training,
    )
    method = task.options.get("method", "solve")
    try:
        outcome = edit_model(
            given,
            method=method,
            label_solver=task.options.get("label_solver", "converged"),
            tolerance=task.options.get("tolerance", {"concept_f1": 0.02, "label_f1": 0.02}),
            settings=Settings(seed=task.seed),
            progress=bench.progress,
        )
        edited, edited_label, engine_report = outcome.model, outcome.label_predictor, outcome.report
        inherited: Factors | None = outcome.factors
    except EditRefused as refusal:
        if task.options.get("on_failure", "fail") != "retrain":
            raise TaskFailure(refusal.code, refusal.detail) from refusal
        edited, edited_label, engine_report = _retrained(bench, frame, given, refusal)
        method, inherited = "retrain", None  # a model trained anew has nothing of its parent's curvature
    bench.progress("evaluating", 0, 1)
    evaluated = time.perf_counter()
    after_metrics = metrics(edited, edited_label, frame.test_after, frame.concepts_after)
    before_metrics = metrics(model, label_predictor, frame.test, task.base.concepts, frame.kept)
    report: dict[str, Any] = {
        "kind": "edit",
        "method": method,
        "device": bench.device,
        "operations": operation_counts(changes),
        "metrics": {"before": before_metrics, "after": after_metrics},
        "edited_rows": edited_rows(frame, {"before": model, "after": edited}),
        "membership": None
        if task.options.get("evidence", "standard") == "none"
        else membership(frame, {"before": model, "after": edited}),
        **engine_report,
        "factors": {"fitted_here": factors_fitted, "version": _factors_version(task, factors_fitted)},
        "libraries": {"torch": torch.__version__, "python": platform.python_version(), "modelmend": code_version()},
    }
    bench.progress("publishing", 0, 1)
    result = Result(
        concepts=frame.concepts_after,
        publishes=True,
        snapshot_digest=bench.store.put(frame.snapshot_after.to_bytes()),
        weights_digest=bench.put_model(edited, edited_label),
        factors_digest=bench.put_factors(inherited) if inherited else None,
        factors_version=_factors_version(task, factors_fitted) if inherited else None,
        metrics=after_metrics,
        report=report,
    )
    bench.forget(changes.removed)
    end = time.perf_counter()
    report["timings"] = {
        "loading": loaded - start,
        **report.get("timings", {}),
        "evaluating": end - evaluated,
    }
    report["seconds"] = end - start
    return result


def operation_counts(changes: SnapshotChanges) -> dict[str, int]:
    """How many labels, concepts and rows the edit touches."""
    counts = {
        "fix_concept_labels": len(changes.fixes),
        "drop_concepts": len(changes.dropped),
        "remove_samples": len(changes.removed),
        "add_samples": len(changes.added),
    }
    return {name: count for name, count in counts.items() if count}


def code_version() -> str:
    return library_version("modelmend")


def _factors(bench: Workbench, model: ConceptPredictor, frame: Frame) -> tuple[Factors, bool]:
    """The cached factors, or new ones where there are none or the method is the paper's, which refits."""
    base = bench.task.base
    if base is not None and base.factors_digest and bench.task.options.get("method") != "closed_form":
        return bench.factors(base.factors_digest), False
    return fit_on(bench, model, frame.train.before, bench.task.seed), True


def _factors_version(task: Task, fitted_here: bool) -> int | None:
    if task.base is None:
        return None
    return task.base.number if fitted_here else task.base.factors_version


def _retrained(
    bench: Workbench, frame: Frame, given: EditInput, refusal: EditRefused
) -> tuple[ConceptPredictor, LabelPredictor, dict[str, Any]]:
    """What the request allows instead of a refused edit: the edited data set, trained anew."""
    train_rows = bench.rows(frame.snapshot_after, "train")
    model, label_predictor, history = train_both(
        bench, train_rows, bench.rows(frame.snapshot_after, "calibration"), bench.task.seed, stage="retraining"
    )
    return (
        model,
        label_predictor,
        {
            "refused": {"code": refusal.code, "detail": refusal.detail},
            "calibration": {
                "before": held_out_metrics(given.model, given.label_predictor, given, edited=False),
                "after": held_out_metrics(model, label_predictor, given, edited=True),
            },
            "training": history,
            "seeds": {"training": bench.task.seed},
        },
    )
