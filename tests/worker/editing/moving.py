"""A bench on a tiny fitted net, that remembers its solves."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.worker.editing.rows import fitted_net, random_rows
from worker.cbm.concept_predictor import ConceptPredictor
from worker.curvature.factors import Factors, fit_factors
from worker.curvature.solve import Solution
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.bench import Bench, Settings
from worker.editing.edited_data import UNKNOWN, EditedData

TRAINING = {"weight_decay": 1e-3, "learning_rate": 1e-3, "batch_size": 16}
TRAIN, CALIBRATION = random_rows(60, unknown=0.0), random_rows(40, first_id=500, seed=2, unknown=0.0)


def trained_net() -> ConceptPredictor:
    """Fits its rows better than others."""
    return fitted_net(TRAIN, TRAINING["weight_decay"])


@dataclass(frozen=True)
class Recorder(Bench):
    """Remembers where a solve was asked for, and for what."""

    solved: list[tuple[ConceptPredictor, ParameterVector]] = field(default_factory=list)

    def solve(self, u: ParameterVector, data: EditedData, iterations: int | None = None) -> Solution:
        self.solved.append((copy.deepcopy(self.model), {name: value.clone() for name, value in u.items()}))
        return super().solve(u, data, iterations)


def factors_of(model: ConceptPredictor) -> Factors:
    return fit_factors(model, lambda: [(TRAIN.images, None, torch.arange(len(TRAIN)))], seed=0)


def bench_of(model: ConceptPredictor, calibration: LabelledImages = CALIBRATION, **settings: Any) -> Recorder:
    """On a copy of the model."""
    return Recorder(
        copy.deepcopy(model),
        factors_of(model),
        calibration,
        TRAINING,
        Settings(**{"curvature_rows": 1000, **settings}),
        lambda stage, done, total: None,
    )


def flipped(rows: LabelledImages, positions: range) -> list[tuple[int, int, int]]:
    return [(i, j, 1 - int(rows.concepts[i, j])) for i in positions for j in (0, 2)]


def masked(rows: LabelledImages, dropped: tuple[int, ...]) -> LabelledImages:
    concepts = rows.concepts.clone()
    concepts[:, list(dropped)] = UNKNOWN
    return replace(rows, concepts=concepts)
