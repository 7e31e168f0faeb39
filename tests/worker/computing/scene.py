"""A small world on disk: images whose concepts are bright patches, and the tasks that work on them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from app.artifacts import ArtifactStore
from app.datasets.snapshots import UNKNOWN, AddedSample, Snapshot, SnapshotChanges
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.weights import load_weights
from worker.compute import execute
from worker.data.images import ImageCache, labelled_images
from worker.data.tensors import LabelledImages
from worker.tasks import BaseVersion, Json, Result, Task

DATASET = "patches"
CONCEPTS = ["top left", "top right", "bottom left", "bottom right"]
CLASSES = ["none", "one", "both"]
SIZE = 8
ARCHITECTURE: Json = {"name": "small_conv", "width": 8, "image_size": SIZE, "channels": 1}
TRAINING: Json = {
    "epochs": 30,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "weight_decay": 1e-4,
    "label_weight_decay": 1e-3,
    "patience": 30,
    "augment": False,
    "seed": 0,
}
BRIEF = TRAINING | {"epochs": 4}
"""Where it does not matter how well something is trained."""

ROWS = {"train": 120, "calibration": 60, "test": 60}


def image_of(concepts: NDArray[np.integer[Any]], random: np.random.Generator, noise: float = 60.0) -> bytes:
    """A PNG with a bright patch in the quarter of each concept that is present."""
    pixels = np.full((SIZE, SIZE), 60.0)
    half = SIZE // 2
    for j, present in enumerate(concepts):
        top, left = divmod(j, 2)
        pixels[top * half : (top + 1) * half, left * half : (left + 1) * half] += 90.0 * present
    noisy = np.clip(pixels + random.normal(0, noise, pixels.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "PNG")
    return file.getvalue()


@dataclass
class Scene:
    """A data set in a store. Labels of ``flipped`` of the rows' concepts are wrong, so that there is something to fix.

    Attributes:
        truth: what the images show, ``[n, k]`` in the order of ids.
    """

    store: ArtifactStore
    snapshot: Snapshot
    truth: NDArray[np.int8]
    reports: list[tuple[str, int, int]] = field(default_factory=list)

    @classmethod
    def build(
        cls,
        store: ArtifactStore,
        *,
        rows: Mapping[str, int] = ROWS,
        flipped: float = 0.08,
        unknown: float = 0.02,
        seed: int = 0,
    ) -> Scene:
        random = np.random.default_rng(seed)
        n = sum(rows.values())
        truth = random.integers(0, 2, (n, len(CONCEPTS)), dtype=np.int8)
        labels = np.where(random.random(truth.shape) < flipped, 1 - truth, truth)
        labels = np.where(random.random(truth.shape) < unknown, UNKNOWN, labels).astype(np.int8)
        snapshot = Snapshot(
            sample_ids=np.arange(10, 10 + n, dtype=np.int64),
            splits=np.repeat(np.arange(3, dtype=np.int8), list(rows.values())),
            classes=(truth[:, 0] + truth[:, 1]).astype(np.int32),
            concepts=labels,
        )
        images = {int(i): image_of(row, random) for i, row in zip(snapshot.sample_ids, truth, strict=True)}
        store.put_images(DATASET, images)
        store.put(snapshot.to_bytes())
        return cls(store, snapshot, truth)

    def ids(self, split: str) -> list[int]:
        return [int(i) for i in self.snapshot.sample_ids[self.snapshot.rows(split)]]

    def run(self, task: Task) -> Result:
        """The result as the parent process would receive it: through JSON without NaN."""
        task = Task.from_json(json.loads(json.dumps(task.to_json())))
        torch.manual_seed(len(self.reports))  # nothing may depend on the global generator
        result = execute(task, self.store, "cpu", lambda *report: self.reports.append(report))
        return Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))

    def task(self, kind: Any, **given: Any) -> Task:
        base: BaseVersion | None = given.get("base")
        return Task(
            kind=kind,
            model_id="model",
            dataset_id=DATASET,
            **{
                "architecture": ARCHITECTURE,
                "training": TRAINING,
                "concepts": base.concepts if base else CONCEPTS,
                "classes": CLASSES,
                "snapshot_digest": base.snapshot_digest if base else self.snapshot.digest,
                "seed": 0,
                **given,
            },
        )

    def train(self, **given: Any) -> Result:
        return self.run(self.task("train", **given))

    def edit(self, base: BaseVersion, changes: SnapshotChanges, *, seed: int = 0, **options: Any) -> Result:
        return self.run(self.task("edit", base=base, changes=changes.to_json(), options=options, seed=seed))

    def wrong_labels(self, count: int) -> SnapshotChanges:
        """The truth for wrong labels of train rows."""
        wrong = [
            (int(self.snapshot.sample_ids[i]), int(j), int(self.truth[i, j]))
            for i in self.snapshot.rows("train")
            for j in range(len(CONCEPTS))
            if self.snapshot.concepts[i, j] == 1 - self.truth[i, j]
        ]
        if len(wrong) < count:
            raise ValueError("there are fewer wrong labels")
        return SnapshotChanges(fixes=tuple(wrong[:count]))

    def more(self, count: int, *, split: int = 0, seed: int = 7, first_id: int = 10_000) -> SnapshotChanges:
        """New rows, their images put into the store."""
        random = np.random.default_rng(seed)
        truth = random.integers(0, 2, (count, len(CONCEPTS)))
        self.store.put_images(DATASET, {first_id + i: image_of(row, random) for i, row in enumerate(truth)})
        return SnapshotChanges(
            added=tuple(
                AddedSample(first_id + i, split, int(row[0] + row[1]), tuple(int(value) for value in row))
                for i, row in enumerate(truth)
            )
        )


def version(result: Result, number: int = 1, *, factors: Result | None = None) -> BaseVersion:
    """The version that a result publishes, its factors from another job if there was one."""
    assert result.snapshot_digest is not None
    assert result.weights_digest is not None
    fitted = factors or result
    return BaseVersion(
        number=number,
        concepts=result.concepts,
        classes=CLASSES,
        snapshot_digest=result.snapshot_digest,
        weights_digest=result.weights_digest,
        factors_digest=fitted.factors_digest,
        factors_version=fitted.factors_version if isinstance(fitted.factors_version, int) else None,
        metrics=result.metrics,
    )


@dataclass
class World:
    """A scene with a trained version 1 and its factors."""

    scene: Scene
    trained: Result
    fitted: Result

    @classmethod
    def of(cls, scene: Scene) -> World:
        trained = scene.train()
        return cls(scene, trained, scene.run(scene.task("fit_factors", base=version(trained))))

    @property
    def base(self) -> BaseVersion:
        return version(self.trained, factors=self.fitted)

    def predictors(self, result: Result) -> tuple[ConceptPredictor, LabelPredictor]:
        """Both predictors of a version that a result publishes."""
        assert result.weights_digest is not None
        path = self.scene.store.fetch(result.weights_digest)
        model, label_predictor = load_weights(path, ARCHITECTURE, len(result.concepts), len(CLASSES), "cpu")
        assert label_predictor is not None
        return model, label_predictor

    def rows(self, snapshot: Snapshot, split: str = "train") -> LabelledImages:
        cache = ImageCache(0)
        return labelled_images(snapshot, snapshot.rows(split), cache, self.scene.store, DATASET, ARCHITECTURE, "cpu")

    def snapshot(self, result: Result) -> Snapshot:
        assert result.snapshot_digest is not None
        return Snapshot.load(self.scene.store.fetch(result.snapshot_digest))

    def changes(self, name: str) -> SnapshotChanges:
        """An edit of each kind that the model can bear, and one of all kinds. No concept of theirs decides a class."""
        train = self.scene.ids("train")
        match name:
            case "fix":
                return self.scene.wrong_labels(12)
            case "remove":
                return SnapshotChanges(removed=tuple(train[:12]))
            case "add":
                return self.scene.more(20)
            case "drop":
                return SnapshotChanges(dropped=(3,))
            case "mixture":
                return SnapshotChanges(
                    fixes=self.scene.wrong_labels(12).fixes,
                    removed=tuple(train[-8:]),
                    added=self.scene.more(10, first_id=20_000).added,
                    dropped=(2,),
                )
        raise ValueError(name)


KINDS = ("fix", "remove", "add", "drop", "mixture")
TOLERANT: Json = {"tolerance": {"concept_f1": 0.15, "label_f1": 0.15}}
"""Sixty held-out rows: one row is worth several hundredths of an F1 score."""
