"""What every kind of job reads and writes: snapshots, images, weights, factors, metrics."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.artifacts import ArtifactMissing, ArtifactStore
from app.datasets.snapshots import Snapshot
from worker.cbm.concept_predictor import ConceptPredictor, build_concept_predictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.metrics import concept_metrics, label_metrics
from worker.cbm.pretrained import load_pretrained
from worker.cbm.training import predict_logits
from worker.cbm.weights import WeightsDoNotFit, load_weights, save_weights
from worker.curvature.factors import Factors
from worker.curvature.storage import load_factors, save_factors
from worker.data.features import FeatureCache
from worker.data.images import ImageCache, labelled_images
from worker.data.tensors import LabelledImages
from worker.tasks import BaseVersion, Task, TaskFailure

Progress = Callable[[str, int, int], None]

IMAGES = ImageCache(budget=4 << 30)
"""Decoded images of this process, shared by its tasks."""

FEATURES = FeatureCache(budget=1 << 30)
"""Features under frozen backbones, likewise."""


class Workbench:
    """One task's view of the store and the device."""

    def __init__(self, task: Task, store: ArtifactStore, device: str, progress: Progress) -> None:
        self.task = task
        self.store = store
        self.device = device
        self.progress = progress

    def snapshot(self, digest: str) -> Snapshot:
        return Snapshot.load(self.store.fetch(digest))

    def positions(self, snapshot: Snapshot, split: str) -> NDArray[np.intp]:
        """Where the rows of one split are.

        Raises:
            TaskFailure: the split is empty, so there is nothing to train on, choose by or measure with.
        """
        positions = snapshot.rows(split)
        if not len(positions):
            raise TaskFailure("empty_split", f"the {split} split has no rows")
        return positions

    def rows(self, snapshot: Snapshot, split: str) -> LabelledImages:
        """The rows of one split, on the device.

        Raises:
            TaskFailure: see :meth:`positions`.
        """
        positions, task = self.positions(snapshot, split), self.task
        return labelled_images(snapshot, positions, IMAGES, self.store, task.dataset_id, task.architecture, self.device)

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Keep no decoded copy of the given rows in this process, nor features of them."""
        gone = list(sample_ids)
        IMAGES.forget(self.store, self.task.dataset_id, gone)
        FEATURES.forget(self.store, self.task.dataset_id, gone)

    def initial_model(self, num_concepts: int, seed: int) -> ConceptPredictor:
        """Where a training starts: weights drawn by the seed, the backbone's pretrained ones where it has any.

        Raises:
            TaskFailure: ``weights_do_not_fit``, or ``pretrained_missing`` where they are gone.
        """
        task = self.task
        model = build_concept_predictor(task.architecture, num_concepts, seed=seed)
        digest = task.architecture.get("pretrained_sha256")
        if digest is not None:
            try:
                load_pretrained(model.backbone, self._pretrained(digest))
            except WeightsDoNotFit as error:
                raise TaskFailure("weights_do_not_fit", str(error)) from error
        return model.to(self.device)

    def _pretrained(self, digest: str) -> Path:
        """The pretrained file: an artifact since the first training, as uploads expire and retrainings begin there."""
        try:
            return self.store.fetch(digest)
        except ArtifactMissing:
            upload = None if self.task.upload_id is None else self.store.upload_path(self.task.upload_id)
            if upload is None or not upload.exists() or self.store.put(upload) != digest:
                raise TaskFailure("pretrained_missing", "the pretrained weights are not stored any more") from None
        return self.store.fetch(digest)

    def model(self, version: BaseVersion) -> tuple[ConceptPredictor, LabelPredictor]:
        """A published version's two predictors."""
        model, label_predictor = load_weights(
            self.store.fetch(version.weights_digest),
            self.task.architecture,
            len(version.concepts),
            len(version.classes),
            self.device,
        )
        if label_predictor is None:
            raise RuntimeError("a published version has no label predictor")
        return model, label_predictor

    def put_model(self, model: ConceptPredictor, label_predictor: LabelPredictor) -> str:
        """Digest of the stored weights."""
        return self.store.put(save_weights(model, label_predictor))

    def factors(self, digest: str) -> Factors:
        return load_factors(self.store.fetch(digest), self.device)

    def put_factors(self, factors: Factors) -> str:
        """Digest of the stored factors."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "factors.safetensors"
            save_factors(factors, path)
            return self.store.put(path)


def metrics(
    model: ConceptPredictor,
    label_predictor: LabelPredictor,
    rows: LabelledImages,
    concepts: list[str],
    kept: list[int] | None = None,
) -> dict[str, Any]:
    """Metrics on rows whose columns are the model's.

    Args:
        concepts: names of the model's columns.
        kept: columns to report, all if None: what remains comparable when concepts were dropped.
    """
    return scores(predict_logits(model, rows.images), label_predictor, rows, concepts, kept)


def scores(
    logits: torch.Tensor,
    label_predictor: LabelPredictor,
    rows: LabelledImages,
    concepts: list[str],
    kept: list[int] | None = None,
) -> dict[str, Any]:
    """Metrics as of :func:`metrics`, from concept logits ``[n, k]`` of the rows."""
    probabilities = torch.sigmoid(logits)
    predicted = label_predictor.logits(probabilities).argmax(dim=1)
    columns = list(range(len(concepts))) if kept is None else kept
    return {
        **concept_metrics(
            probabilities[:, columns].cpu().numpy(),
            rows.concepts[:, columns].cpu().numpy(),
            [concepts[j] for j in columns],
        ),
        **label_metrics(predicted.cpu().numpy(), rows.classes.cpu().numpy(), len(label_predictor.bias)),
        "rows": len(rows),
    }
