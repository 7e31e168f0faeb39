"""What every movement of an edit needs: the model it moves, and what it measures and solves with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from worker.cbm.arithmetic import Twin
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses
from worker.curvature import vectors
from worker.curvature.factors import Factors
from worker.curvature.solve import Solution
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.step import Curvature, Line
from worker.editing.unseen import Level

Progress = Callable[[str, int, int], None]

HELD_OUT_LIMIT = 1.1
"""A step may cost this much of the held-out concept loss, whatever it still has to reach."""

MEASURED_ROWS = 96
"""Of removed or learned rows at most, whose loss decides a length."""


@dataclass(frozen=True)
class Settings:
    """How steps are computed.

    Attributes:
        iterations: of conjugate gradients, one exact product each.
        learning_iterations: the same for what is to be learned, where fewer overfit the sample less.
        curvature_rows: rows the products average over; None takes a sixteenth of the data, at most 512, and at
            least 64, or 96 where half of them are corrected and added rows.
        sample_rows: of untouched rows that stand for all of them in gradients and losses.
        norm_rows: for gradient norms in the report.
        statistics_rows: from which BatchNorm's statistics are computed anew after a removal.
        damping: ``d``; None takes the weight decay, at least a hundredth of the factors' mean eigenvalue.
        seed: of every sample drawn.
    """

    iterations: int = 4
    learning_iterations: int = 3
    curvature_rows: int | None = None
    sample_rows: int = 128
    norm_rows: int = 32
    statistics_rows: int = 512
    damping: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Bench:
    """The model is moved in place; whatever is measured is measured where it is."""

    model: ConceptPredictor
    factors: Factors
    calibration: LabelledImages
    training: Mapping[str, Any]
    settings: Settings
    progress: Progress
    _remembered: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def twin(self) -> Twin:
        """The model in fast arithmetic."""
        return Twin(self.model)

    @property
    def weight_decay(self) -> float:
        return float(self.training["weight_decay"])

    @property
    def damping(self) -> float:
        if self.settings.damping is not None:
            return self.settings.damping
        return max(self.weight_decay, 0.01 * self.factors.mean_eigenvalue)

    @property
    def held_out_features(self) -> Tensor:
        """Features ``[n, d + 1]`` of the held-out rows; remembered until the backbone moves."""
        backbone = self.model.backbone
        moved = tuple(tensor._version for tensor in (*backbone.parameters(), *backbone.buffers()))
        if self._remembered.get("moved") != moved:
            self._remembered.update(moved=moved, features=self.twin.features(self.calibration.images))
        features: Tensor = self._remembered["features"]
        return features

    @property
    def held_out(self) -> Tensor:
        """Logits ``[n, k]`` of the held-out rows under the model as it is now."""
        return self.twin.head(self.held_out_features)

    @property
    def held_out_losses(self) -> Tensor:
        """Concept losses ``[n]`` of the held-out rows under the model as it is now."""
        return concept_losses(self.held_out, self.calibration.concepts)

    @property
    def held_out_loss(self) -> float:
        return float(self.held_out_losses.mean())

    def losses(self, rows: LabelledImages) -> Tensor:
        """Concept losses ``[n]`` of rows under the model as it is now."""
        return concept_losses(self.twin.logits(rows.images), rows.concepts)

    def loss(self, rows: LabelledImages) -> float:
        return float(self.losses(rows).mean()) if len(rows) else 0.0

    def sample(self, positions: Tensor) -> Tensor:
        """At most ``sample_rows`` of the positions, chosen by the seed."""
        return chosen(positions, self.settings.sample_rows, self.settings.seed)

    def measured(self, rows: LabelledImages) -> LabelledImages:
        """At most :data:`MEASURED_ROWS` of the rows."""
        some = chosen(torch.arange(len(rows), device=rows.sample_ids.device), MEASURED_ROWS, self.settings.seed)
        return rows if len(some) == len(rows) else rows.take(some)

    def curvature_rows(self, data: EditedData) -> int:
        """How many rows products average over."""
        least = 96 if len(data.fixed) + len(data.added) else 64
        return self.settings.curvature_rows or min(512, max(least, len(data.after) // 16))

    def solve(self, u: ParameterVector, data: EditedData, iterations: int | None = None) -> Solution:
        """The direction for ``u`` with curvature over a sample of the edited data set."""
        rows, weights = curvature_sample(data, self.curvature_rows(data), self.settings.seed)
        curvature = Curvature(self.model, rows, weights, self.factors, self.damping, data.dropped, self.twin)
        return curvature.solve(
            u,
            iterations=self.settings.iterations if iterations is None else min(iterations, self.settings.iterations),
            progress=lambda done, total: self.progress("solving", done, total),
        )


def curvature_sample(data: EditedData, size: int, seed: int) -> tuple[LabelledImages, Tensor]:
    """Rows of the edited data set for curvature products, and their weights (mean 1).

    Corrected and added rows come first, up to half the size: the step goes where their gradients point, and without
    their own curvature nothing but the damping would hold it there. Weights make the weighted mean that of all rows.
    """
    touched = torch.cat([data.fixed, data.added])
    strata = [chosen(touched, size // 2, seed)]
    strata.append(chosen(data.untouched, size - len(strata[0]), seed))
    total = sum(len(positions) for positions in strata)
    weights = [
        torch.full((len(some),), len(whole) / len(some) * total / len(data.after), device=data.after.images.device)
        for some, whole in zip(strata, (touched, data.untouched), strict=True)
        if len(some)
    ]
    return data.after.take(torch.cat(strata)), torch.cat(weights)


@dataclass(frozen=True)
class Step:
    """One step that was taken; ``unseen`` is the level of unseen rows with its interval.

    ``iterations`` are of conjugate gradients. A polish of the head has none, and is not scaled.
    """

    phase: str
    scale: float
    norm: float
    iterations: int
    relative_residual: float
    stop: str
    level: float | None
    loss_before: float
    loss_after: float
    unseen: Level | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def step_taken(
    phase: str,
    line: Line,
    scale: float,
    solution: Solution,
    level: float | None,
    before: float,
    after: float,
    unseen: Level | None = None,
) -> Step:
    """The record of a step of that scale along the line."""
    return Step(
        phase=phase,
        scale=scale,
        norm=scale * vectors.norm(line.direction),
        iterations=solution.iterations,
        relative_residual=solution.relative_residual,
        stop=str(solution.stop),
        level=level,
        loss_before=before,
        loss_after=after,
        unseen=unseen,
    )


def per_label(losses: Tensor, rows: LabelledImages) -> Tensor:
    """Losses ``[n]`` of rows per known label, so that rows with some labels unknown compare; 0 without any."""
    return losses / known_labels(rows).clamp_min(1)


def known_labels(rows: LabelledImages) -> Tensor:
    """How many concept labels of each row are known ``[n]``."""
    return (rows.concepts != UNKNOWN).sum(dim=1).to(rows.images.dtype)


def chosen(positions: Tensor, size: int, seed: int) -> Tensor:
    """At most ``size`` of the positions, by the seed."""
    return positions if len(positions) <= size else shuffled(positions, seed)[:size]


def shuffled(positions: Tensor, seed: int) -> Tensor:
    """The positions in an order by the seed."""
    generator = torch.Generator().manual_seed(seed)
    return positions[torch.randperm(len(positions), generator=generator).to(positions.device)]
