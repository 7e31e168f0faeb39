"""A step in parameter space: its direction by a preconditioned solve, and the line along it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.cbm.concept_predictor import HEAD, ConceptPredictor
from worker.curvature import vectors
from worker.curvature.ekfac import EKFAC
from worker.curvature.factors import Factors
from worker.curvature.ggn import GGN
from worker.curvature.solve import Solution, conjugate_gradients
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages

HEAD_PARAMETERS = (f"{HEAD}.weight", f"{HEAD}.bias")


@dataclass(frozen=True)
class Curvature:
    """``(F + dI)⁻¹`` at a model's present parameters.

    Args:
        rows: over which the exact Gauss-Newton products average; labels only mask.
        factors: cached EK-FAC factors, the preconditioner.
        damping: ``d``.
        dropped: output rows of the head that the step must leave alone.
    """

    model: ConceptPredictor
    rows: LabelledImages
    factors: Factors
    damping: float
    dropped: tuple[int, ...] = ()

    def solve(
        self, u: ParameterVector, *, iterations: int, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Solution:
        """``(F + dI) Δ = u`` by conjugate gradients with exact products, preconditioned by EK-FAC."""
        mask = (self.rows.concepts >= 0).to(self.rows.images.dtype)
        ggn = GGN(self.model, self.rows.images, mask)
        ekfac = EKFAC(self.factors, self.damping)
        done = 0

        def matmul(vector: vectors.ParameterMapping) -> ParameterVector:
            nonlocal done
            done += 1
            progress(done, iterations)
            return self._inside(ggn.matmul(vector))

        return conjugate_gradients(
            matmul,
            self._inside(u),
            damping=self.damping,
            precondition=lambda vector: self._inside(ekfac.solve(vector)),
            max_iterations=iterations,
            tolerance=1e-3,
        )

    def apply_inverse_factors(self, u: ParameterVector) -> ParameterVector:
        """EK-FAC's ``(F + dI)⁻¹ u`` alone: the paper's step."""
        return self._inside(EKFAC(self.factors, self.damping).solve(self._inside(u)))

    def _inside(self, vector: vectors.ParameterMapping) -> ParameterVector:
        return vectors.zero_rows(vector, self.dropped, HEAD_PARAMETERS) if self.dropped else dict(vector)


class Line:
    """The models ``θ₀ + s·Δ``; ``at(s)`` moves the model there in place."""

    def __init__(self, model: ConceptPredictor, direction: ParameterVector) -> None:
        self.model = model
        self.direction = direction
        self._origin = vectors.from_parameters(model)

    @torch.no_grad()
    def at(self, scale: float) -> ConceptPredictor:
        parameters = dict(self.model.named_parameters())
        for name, origin in self._origin.items():
            parameters[name].copy_(torch.add(origin, self.direction[name], alpha=scale))
        return self.model


@torch.no_grad()
def recompute_statistics(model: ConceptPredictor, images: Tensor, batch_size: int = 256) -> None:
    """BatchNorm's running statistics from the given images alone: one pass in train mode, cumulative average.

    What the statistics held before, removed images included, is gone.
    """
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
    # Equal chunks, so that each row weighs the same in the average.
    chunks = max(1, round(len(images) / batch_size))
    model.train()
    for chunk in images.tensor_split(chunks):
        model(chunk)
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
