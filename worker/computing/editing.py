"""An edit as a job: the edited data set, the engine, evidence, and a new version's artifacts."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from importlib.metadata import version as library_version
from typing import Any

import torch
from torch import Tensor

from app.datasets.snapshots import SnapshotChanges
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.computing.factors import ChosenFactors, factors_for
from worker.computing.frame import Frame
from worker.computing.frozen import is_frozen
from worker.computing.measuring import Measured, audited, claim_of, edited_groups, edited_rows, membership
from worker.computing.references import trained_references
from worker.computing.training import train_both
from worker.computing.voting import votes_report
from worker.computing.workbench import Workbench
from worker.curvature.factors import Factors
from worker.editing.bench import Settings
from worker.editing.engine import EditInput, attempt, held_out_metrics
from worker.editing.frozen import FrozenEdit
from worker.editing.frozen import attempt as attempt_heads
from worker.editing.guard import EditRefused
from worker.evidence.audit import References
from worker.tasks import Result, TaskFailure

TOLERANCE = {"concept_f1": 0.02, "label_f1": 0.02}
"""How far held-out scores may fall where a request does not say."""


@dataclass(frozen=True)
class Refusal:
    """Why the edit must not be published."""

    code: str
    detail: str


@dataclass(frozen=True)
class Edited:
    """An edit, computed, nothing of it stored.

    Attributes:
        inherited: factors for the new version; None where its model was trained anew, or has a frozen backbone.
        chosen: the factors that served, in the base version's columns; none do where the backbone is frozen.
        refusal: the guard's, where such edits are shown; the rest is then what the version would have been.
    """

    frame: Frame
    model: ConceptPredictor
    label_predictor: LabelPredictor
    inherited: Factors | None
    chosen: ChosenFactors | None
    metrics: dict[str, Any]
    report: dict[str, Any]
    refusal: Refusal | None = None


def edit(bench: Workbench) -> Result:
    """Apply the task's changes to its base version.

    Raises:
        TaskFailure: the changes do not apply, or the guard refused and ``on_failure`` does not allow a retraining.
    """
    start = time.perf_counter()
    done = computed(bench)
    bench.progress("publishing", 0, 1)
    result = Result(
        concepts=done.frame.concepts_after,
        publishes=True,
        snapshot_digest=bench.store.put(done.frame.snapshot_after.to_bytes()),
        weights_digest=bench.put_model(done.model, done.label_predictor),
        factors_digest=bench.put_factors(done.inherited) if done.inherited else None,
        factors_version=done.chosen.version if done.inherited and done.chosen else None,
        metrics=done.metrics,
        report=done.report,
    )
    bench.forget(SnapshotChanges.from_json(bench.task.changes or {}).removed)
    done.report["seconds"] = time.perf_counter() - start
    return result


def computed(bench: Workbench, *, shows_refused: bool = False) -> Edited:
    """The edit that the task asks for, up to where something would be stored.

    Args:
        shows_refused: what the guard refuses after measuring it is measured to the end, and comes with its refusal.

    Raises:
        TaskFailure: see :func:`edit`.
    """
    task, start = bench.task, time.perf_counter()
    if task.base is None or task.changes is None:
        raise RuntimeError("an edit needs a base version and changes")
    bench.progress("loading", 0, 1)
    changes = SnapshotChanges.from_json(task.changes)
    snapshot = bench.snapshot(task.base.snapshot_digest)
    frame = Frame(bench, task.base.concepts, snapshot, changes)
    model, label_predictor = bench.model(task.base)
    solved = _solved_heads if is_frozen(task.training) else _solved
    found = solved(bench, frame, model, label_predictor, shows_refused=shows_refused)
    level = task.options.get("evidence", "standard")
    if found.refusal is not None and level == "full":
        level = "standard"  # reference models are dear, and nobody is told to forget by this
    references, seconds = _references(bench, frame, level)
    bench.progress("evaluating", 0, 1)
    evaluated = time.perf_counter()
    groups = edited_groups(frame)
    before = Measured(frame, groups, model, label_predictor, edited=False)
    after = Measured(frame, groups, found.model, found.label_predictor, edited=True)
    after_metrics = after.test_metrics(frame.concepts_after)
    evidence = (
        None
        if level == "none"
        else audited(
            frame,
            {"before": [before], "after": [after]},
            level=level,
            seed=task.seed,
            references=references,
            claim=claim_of(task.training),
        )
    )
    report: dict[str, Any] = {
        "kind": "edit",
        "method": found.method,
        "device": bench.device,
        "operations": operation_counts(changes),
        "votes": votes_report(task, snapshot, changes),
        "classes_without_rows": classes_without_rows(frame.train.after.classes, task.base.classes),
        "metrics": {
            "before": before.test_metrics(task.base.concepts),
            "after": after.test_metrics(frame.concepts_after, shared=True),
            "new_concepts": {concept.name: after_metrics["concepts"].get(concept.name) for concept in changes.new},
        },
        "edited_rows": edited_rows(groups, {"before": before, "after": after}),
        "membership": None if evidence is None else membership(evidence),
        "evidence": evidence,
        **found.report,
        "factors": None if found.chosen is None else found.chosen.report(),
        "libraries": {"torch": torch.__version__, "python": platform.python_version(), "modelmend": code_version()},
    }
    report["timings"] = {
        "loading": found.loaded - start,
        **report.get("timings", {}),
        **seconds,
        "evaluating": time.perf_counter() - evaluated,
    }
    return Edited(
        frame, found.model, found.label_predictor, found.inherited, found.chosen, after_metrics, report, found.refusal
    )


@dataclass(frozen=True)
class _Solved:
    """The edited model before it is measured; ``loaded`` is when everything that it needs was there."""

    model: ConceptPredictor
    label_predictor: LabelPredictor
    inherited: Factors | None
    chosen: ChosenFactors | None
    method: str
    report: dict[str, Any]
    loaded: float
    refusal: Refusal | None


def _solved_heads(
    bench: Workbench, frame: Frame, model: ConceptPredictor, label_predictor: LabelPredictor, *, shows_refused: bool
) -> _Solved:
    """The exact edit of a model with a frozen backbone; it is what training anew comes to, so that is never tried."""
    task, loaded = bench.task, time.perf_counter()
    if task.base is None:
        raise RuntimeError("an edit has a base version")
    given = FrozenEdit(
        model=model,
        label_predictor=label_predictor,
        data=frame.train,
        calibration=frame.calibration,
        concepts=frame.concepts,
        classes=task.base.classes,
        training=task.training,
    )
    tolerance = task.options.get("tolerance", TOLERANCE)
    try:
        outcome = attempt_heads(given, tolerance=tolerance, progress=bench.progress)
        refused, report = outcome.refusal, outcome.report
        retrains = task.options.get("on_failure", "fail") == "retrain"
        if refused is not None and not retrains and not shows_refused:
            raise refused
    except EditRefused as error:
        raise TaskFailure(error.code, error.detail) from error
    refusal = None
    if refused is not None:
        if retrains:
            report = report | {"refused": {"code": refused.code, "detail": refused.detail}}
        else:
            refusal = Refusal(refused.code, refused.detail)
    return _Solved(outcome.model, outcome.label_predictor, None, None, "exact", report, loaded, refusal)


def _solved(
    bench: Workbench, frame: Frame, model: ConceptPredictor, label_predictor: LabelPredictor, *, shows_refused: bool
) -> _Solved:
    """The engine's edit, or a model trained anew where it was refused and the request allows that."""
    task = bench.task
    if task.base is None:
        raise RuntimeError("an edit has a base version")
    chosen = factors_for(bench, model, frame.base_train)
    loaded = time.perf_counter()
    given = EditInput(
        model=model,
        label_predictor=label_predictor,
        factors=chosen.factors,
        data=frame.train,
        calibration=frame.calibration,
        concepts=frame.concepts,
        classes=task.base.classes,
        training=task.training,
    )
    method = task.options.get("method", "solve")
    refusal: Refusal | None = None
    try:
        outcome = attempt(
            given,
            method=method,
            label_solver=task.options.get("label_solver", "converged"),
            tolerance=task.options.get("tolerance", TOLERANCE),
            settings=Settings(seed=task.seed),
            progress=bench.progress,
        )
        if outcome.refusal is not None:
            if not shows_refused or task.options.get("on_failure", "fail") == "retrain":
                raise outcome.refusal
            refusal = Refusal(outcome.refusal.code, outcome.refusal.detail)
        edited, edited_label, engine_report = outcome.model, outcome.label_predictor, outcome.report
        inherited: Factors | None = outcome.factors
    except EditRefused as refused:
        if task.options.get("on_failure", "fail") != "retrain":
            raise TaskFailure(refused.code, refused.detail) from refused
        edited, edited_label, engine_report = _retrained(bench, frame, given, refused)
        method, inherited = "retrain", None  # a model trained anew has nothing of its parent's curvature
    return _Solved(edited, edited_label, inherited, chosen, method, engine_report, loaded, refusal)


def _references(bench: Workbench, frame: Frame, level: str) -> tuple[References | None, dict[str, float]]:
    """Reference models where the request asks for them and rows were removed, and the seconds of their training."""
    if level != "full" or not len(frame.train.removed):
        return None, {}
    start = time.perf_counter()
    references = trained_references(bench, frame, bench.task.options.get("reference_models", 0), bench.task.seed)
    return references, {"reference_models": time.perf_counter() - start}


def classes_without_rows(classes: Tensor, names: list[str]) -> list[str]:
    """Classes that the model has and none of its training rows."""
    held = set(classes.tolist())
    return [name for c, name in enumerate(names) if c not in held]


def operation_counts(changes: SnapshotChanges) -> dict[str, int]:
    """How many labels, concepts and rows the edit touches."""
    counts = {
        "fix_concept_labels": len(changes.fixes),
        "drop_concepts": len(changes.dropped),
        "remove_samples": len(changes.removed),
        "add_concepts": len(changes.new),
        "add_samples": len(changes.added),
    }
    return {name: count for name, count in counts.items() if count}


def code_version() -> str:
    return library_version("modelmend")


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
