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
from worker.curvature.solve import Solution, Stop, conjugate_gradients
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages

HEAD_PARAMETERS = (f"{HEAD}.weight", f"{HEAD}.bias")


@dataclass(frozen=True)
class Curvature:
    """``(F + dI)⁻¹`` at a model's present parameters.

    Args:
        rows: over which the exact Gauss-Newton products average; labels only mask.
        weights: ``[n]``, mean 1, of the rows in that average.
        factors: cached EK-FAC factors, the preconditioner.
        damping: ``d``.
        dropped: output rows of the head that the step must leave alone.
    """

    model: ConceptPredictor
    rows: LabelledImages
    weights: Tensor
    factors: Factors
    damping: float
    dropped: tuple[int, ...] = ()

    def solve(
        self, u: ParameterVector, *, iterations: int, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Solution:
        """``(F + dI) Δ = u`` by conjugate gradients with exact products, preconditioned by EK-FAC.

        Without iterations EK-FAC's inverse itself stands for that of ``F + dI``.
        """
        # A weight of a row and a mask of its labels enter the curvature in the same way.
        mask = (self.rows.concepts >= 0).to(self.rows.images.dtype) * self.weights[:, None]
        ggn = GGN(self.model, self.rows.images, mask)
        ekfac = EKFAC(self.factors, self.damping)
        if not iterations:
            direction = self._inside(ekfac.solve(self._inside(u)))
            return Solution(direction, 0, Stop.MAX_ITERATIONS, (1.0,), ())
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

    def _inside(self, vector: vectors.ParameterMapping) -> ParameterVector:
        return outside_dropped(vector, self.dropped)


def inverse_factors(
    u: ParameterVector, factors: Factors, damping: float, dropped: tuple[int, ...] = ()
) -> ParameterVector:
    """EK-FAC's ``(F + dI)⁻¹ u`` alone: the paper's step."""
    return outside_dropped(EKFAC(factors, damping).solve(outside_dropped(u, dropped)), dropped)


def outside_dropped(vector: vectors.ParameterMapping, dropped: tuple[int, ...]) -> ParameterVector:
    """The vector without what it does to the head's rows of dropped concepts."""
    return vectors.zero_rows(vector, dropped, HEAD_PARAMETERS) if dropped else dict(vector)


class Line:
    """The models ``θ₀ + s·Δ``; ``at(s)`` moves the model there in place."""

    def __init__(self, model: ConceptPredictor, direction: ParameterVector) -> None:
        self.model = model
        self.direction = direction
        self._origin = vectors.from_parameters(model)

    def at(self, scale: float) -> ConceptPredictor:
        return self.to(vectors.axpy(scale, self.direction, self._origin))

    @torch.no_grad()
    def to(self, parameters: ParameterVector) -> ConceptPredictor:
        """The model with the given parameters, on the line or off it."""
        own = dict(self.model.named_parameters())
        for name, value in parameters.items():
            own[name].copy_(value)
        return self.model

    def distance(self) -> float:
        """``‖θ − θ₀‖`` of where the model is now."""
        return vectors.norm(vectors.axpy(-1.0, self._origin, vectors.from_parameters(self.model)))


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
