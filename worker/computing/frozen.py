"""Models whose backbone is frozen, as their jobs see them: rows are features, and the model is its head.

A row's "image" is its feature vector as ``[d, 1, 1]`` and the backbone of a :func:`head_view` only flattens it, so
whatever works on a model and its rows works on these, at the cost of a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from app.artifacts import ArtifactStore
from app.datasets.snapshots import Snapshot
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.head_training import head_view
from worker.cbm.label_predictor import LabelPredictor
from worker.computing import workbench
from worker.computing.workbench import Workbench
from worker.data.features import digest_of, features_under
from worker.data.images import labelled_images
from worker.data.tensors import LabelledImages
from worker.tasks import BaseVersion, Task


def is_frozen(training: Mapping[str, Any]) -> bool:
    """Whether the model's backbone is frozen; models from before the setting existed do not have it."""
    return bool(training.get("frozen_backbone", False))


class FrozenWorkbench(Workbench):
    """A workbench whose models are head views and whose rows are features."""

    def rows(self, snapshot: Snapshot, split: str) -> LabelledImages:
        """The rows of one split as features. Only images that have no cached features are decoded."""
        positions = self.positions(snapshot, split)
        ids = snapshot.sample_ids[positions]
        task = self.task

        def compute(missing: Sequence[int]) -> Tensor:
            chosen = positions[np.isin(ids, missing)]
            rows = labelled_images(
                snapshot, chosen, workbench.IMAGES, self.store, task.dataset_id, task.architecture, self.device
            )
            return features_under(self.backbone, rows.images)

        features = workbench.FEATURES.read(self.backbone_digest, self.store, task.dataset_id, ids.tolist(), compute)
        return LabelledImages(
            images=features.to(self.device)[:, :, None, None],
            concepts=torch.from_numpy(snapshot.concepts[positions].astype("int64")).to(self.device),
            classes=torch.from_numpy(snapshot.classes[positions].astype("int64")).to(self.device),
            sample_ids=torch.from_numpy(ids.copy()).to(self.device),
        )

    def model(self, version: BaseVersion) -> tuple[ConceptPredictor, LabelPredictor]:
        """A published version's head view and label predictor."""
        model, label_predictor = super().model(version)
        if digest_of(model.backbone, self.task.architecture["image_size"]) != self.backbone_digest:
            raise RuntimeError("versions of a model with a frozen backbone have the same backbone")
        return head_view(model), label_predictor

    def put_model(self, model: ConceptPredictor, label_predictor: LabelPredictor) -> str:
        """Digest of the stored weights: the frozen backbone's and the view's head."""
        whole = ConceptPredictor(self.backbone, model.head.in_features, model.head.out_features)
        whole.head.load_state_dict(model.head.state_dict())
        return super().put_model(whole, label_predictor)

    def adopt(self, model: ConceptPredictor) -> ConceptPredictor:
        """Freeze the backbone of a model that has no version yet; returns its head view."""
        self.__dict__["backbone"] = model.backbone
        self.__dict__.pop("backbone_digest", None)
        return head_view(model)

    @cached_property
    def backbone(self) -> nn.Module:
        """The base version's; before there is one, what the architecture, its pretrained weights and the seed say."""
        if self.task.base is not None:
            return super().model(self.task.base)[0].backbone
        return self.initial_model(len(self.task.concepts), self.task.seed).backbone.eval()

    @cached_property
    def backbone_digest(self) -> str:
        return digest_of(self.backbone, self.task.architecture["image_size"])


def workbench_for(
    task: Task, store: ArtifactStore, device: str, progress: Callable[[str, int, int], None]
) -> Workbench:
    """The workbench of a task: of a model with a frozen backbone, where the job only concerns its heads."""
    concerns_heads = task.kind in ("train", "register", "edit", "preview", "retrain", "insight")
    kind = FrozenWorkbench if is_frozen(task.training) and concerns_heads else Workbench
    return kind(task, store, device, progress)
