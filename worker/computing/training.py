"""Version 1 of a model: trained here, or registered with weights that exist."""

from __future__ import annotations

import time
from typing import Any

import torch

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.head_training import train_heads
from worker.cbm.label_predictor import LabelPredictor, fit_label_predictor
from worker.cbm.training import predict_logits, train_concept_predictor
from worker.cbm.weights import WeightsDoNotFit, load_weights
from worker.computing.frozen import FrozenWorkbench, is_frozen
from worker.computing.workbench import Workbench, metrics
from worker.data.tensors import LabelledImages
from worker.tasks import Result, TaskFailure


def train(bench: Workbench) -> Result:
    """Train on the data set's train split; metrics are those of the test split."""
    task = bench.task
    start = time.perf_counter()
    bench.progress("loading", 0, 1)
    snapshot = bench.snapshot(task.snapshot_digest)
    rows = {split: bench.rows(snapshot, split) for split in ("train", "calibration", "test")}
    model, label_predictor, history = train_both(bench, rows["train"], rows["calibration"], task.seed)
    bench.progress("evaluating", 0, 1)
    measured = metrics(model, label_predictor, rows["test"], task.concepts)
    bench.progress("publishing", 0, 1)
    return Result(
        concepts=task.concepts,
        publishes=True,
        snapshot_digest=task.snapshot_digest,
        weights_digest=bench.put_model(model, label_predictor),
        metrics=measured,
        report={
            "kind": "train",
            "device": bench.device,
            "metrics": measured,
            "seed": task.seed,
            **history,
            "seconds": time.perf_counter() - start,
        },
    )


def train_both(
    bench: Workbench,
    train_rows: LabelledImages,
    calibration: LabelledImages,
    seed: int,
    stage: str = "training",
    repetition: tuple[int, int] = (0, 1),
) -> tuple[ConceptPredictor, LabelPredictor, dict[str, Any]]:
    """Concept predictor, then label predictor on its probabilities; and the history of the training.

    Args:
        repetition: (which, of how many), for the progress of repeated trainings.
    """
    task, (which, repeats) = bench.task, repetition
    if is_frozen(task.training):
        bench.progress(stage, which, repeats)
        return train_heads(task.training, train_rows, len(task.classes))
    model, history = train_concept_predictor(
        task.architecture,
        task.training,
        train_rows,
        calibration,
        seed=seed,
        progress=lambda done, total: bench.progress(stage, which * total + done, repeats * total),
        initial=bench.initial_model(train_rows.concepts.shape[1], seed),
    )
    label_predictor = converged_label_predictor(bench, model, train_rows)
    return model, label_predictor, history


def converged_label_predictor(bench: Workbench, model: ConceptPredictor, rows: LabelledImages) -> LabelPredictor:
    """The label predictor of the rows under the model."""
    probabilities = torch.sigmoid(predict_logits(model, rows.images))
    return fit_label_predictor(
        probabilities, rows.classes, len(bench.task.classes), weight_decay=bench.task.training["label_weight_decay"]
    )


def register(bench: Workbench) -> Result:
    """Take over uploaded weights; a file without a label predictor gets one fitted on the train split.

    Raises:
        TaskFailure: ``weights_do_not_fit``.
    """
    task = bench.task
    start = time.perf_counter()
    bench.progress("loading", 0, 1)
    if task.upload_id is None:
        raise RuntimeError("a registration needs an upload")
    try:
        model, label_predictor = load_weights(
            bench.store.upload_path(task.upload_id),
            task.architecture,
            len(task.concepts),
            len(task.classes),
            bench.device,
            label_predictor_required=False,
        )
    except WeightsDoNotFit as error:
        raise TaskFailure("weights_do_not_fit", str(error)) from error
    snapshot = bench.snapshot(task.snapshot_digest)
    fitted_here = label_predictor is None
    history: dict[str, Any] = {}
    if isinstance(bench, FrozenWorkbench):  # its versions have converged heads, whatever was sent
        start_view = bench.adopt(model)
        bench.progress("training", 0, 1)
        rows = bench.rows(snapshot, "train")
        model, label_predictor, history = train_heads(task.training, rows, len(task.classes), start_view)
        fitted_here = True
    elif label_predictor is None:
        bench.progress("label_predictor", 0, 1)
        label_predictor = converged_label_predictor(bench, model, bench.rows(snapshot, "train"))
    bench.progress("evaluating", 0, 1)
    measured = metrics(model, label_predictor, bench.rows(snapshot, "test"), task.concepts)
    bench.progress("publishing", 0, 1)
    return Result(
        concepts=task.concepts,
        publishes=True,
        snapshot_digest=task.snapshot_digest,
        weights_digest=bench.put_model(model, label_predictor),
        metrics=measured,
        report={
            "kind": "register",
            "device": bench.device,
            "metrics": measured,
            "label_predictor_fitted": fitted_here,
            **history,
            "seconds": time.perf_counter() - start,
        },
    )
