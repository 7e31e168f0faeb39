"""A step in parameter space: its direction by a preconditioned solve, and the line along it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.cbm.arithmetic import Twin, batch_size, quick_type
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
        twin: of the model, for products in fast arithmetic; they are in the model's own if None.
    """

    model: ConceptPredictor
    rows: LabelledImages
    weights: Tensor
    factors: Factors
    damping: float
    dropped: tuple[int, ...] = ()
    twin: Twin | None = None

    def solve(
        self, u: ParameterVector, *, iterations: int, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Solution:
        """``(F + dI) Δ = u`` by conjugate gradients with exact products, preconditioned by EK-FAC.

        Without iterations EK-FAC's inverse itself stands for that of ``F + dI``.
        """
        ekfac = EKFAC(self.factors, self.damping)
        if not iterations:
            direction = self._inside(ekfac.solve(self._inside(u)))
            return Solution(direction, 0, Stop.MAX_ITERATIONS, (1.0,), ())
        model = self.twin.now() if self.twin else self.model
        images = self.twin.images(self.rows.images) if self.twin else self.rows.images
        narrow = next(model.parameters()).dtype
        # A weight of a row and a mask of its labels enter the curvature in the same way.
        mask = (self.rows.concepts >= 0).to(self.rows.images.dtype) * self.weights[:, None]
        ggn = GGN(model, images, mask, output_curvature=_variance, chunk_size=batch_size(images.device))
        done = 0

        def matmul(vector: vectors.ParameterMapping) -> ParameterVector:
            nonlocal done
            done += 1
            progress(done, iterations)
            product = ggn.matmul({name: value.to(narrow) for name, value in vector.items()})
            return self._inside({name: value.to(vector[name].dtype) for name, value in product.items()})

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


def _variance(logits: Tensor) -> Tensor:
    """``p (1 − p)``, computed in single precision at least: in bfloat16 ``1 − p`` is 0 from p = 0.998."""
    p = torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    return (p * (1 - p)).to(logits.dtype)


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
        self._scale = 0.0

    def at(self, scale: float) -> ConceptPredictor:
        """The model at ``θ₀ + scale · Δ``; it is not touched where it is there already."""
        if scale != self._scale:
            self.to(vectors.axpy(scale, self.direction, self._origin))
            self._scale = scale
        return self.model

    @torch.no_grad()
    def to(self, parameters: ParameterVector) -> ConceptPredictor:
        """The model with the given parameters, on the line or off it."""
        own = dict(self.model.named_parameters())
        for name, value in parameters.items():
            own[name].copy_(value)
        self._scale = math.nan
        return self.model

    def distance(self) -> float:
        """``‖θ − θ₀‖`` of where the model is now."""
        return vectors.norm(vectors.axpy(-1.0, self._origin, vectors.from_parameters(self.model)))


@torch.no_grad()
def recompute_statistics(model: ConceptPredictor, images: Tensor, chunk_rows: int | None = None) -> None:
    """BatchNorm's running statistics from the given images alone: one pass in train mode, cumulative average.

    What the statistics held before, removed images included, is gone.
    """
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
    # Equal chunks, so that each row weighs the same in the average.
    chunks = max(1, round(len(images) / (chunk_rows or batch_size(images.device))))
    quick = quick_type(model)
    model.train()
    with torch.autocast(images.device.type, quick, enabled=quick == torch.bfloat16):
        for chunk in images.tensor_split(chunks):
            model(chunk.contiguous(memory_format=torch.channels_last))
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
