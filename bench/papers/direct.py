"""CBM-IF: the paper's influence step without EK-FAC, its inverse by conjugate gradients on exact products.

``θ̂ + (F + dI)⁻¹ u`` at full length, ``F`` the Gauss-Newton matrix over training rows, solved to a tight tolerance
without a preconditioner. The label predictor follows by the paper's closed form.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from rivals import Recipe, Request, Settled, now

from worker.cbm.concept_predictor import ConceptPredictor, with_head_rows
from worker.cbm.label_predictor import closed_form_edit
from worker.cbm.training import predict_logits
from worker.curvature import GGN, NonFiniteError, conjugate_gradients, vectors
from worker.curvature.solve import Solution
from worker.data.tensors import LabelledImages
from worker.editing.bench import Settings, chosen
from worker.editing.gradients import after_gradient, edit_gradient
from worker.editing.step import Line, outside_dropped, recompute_statistics

PIXELS_AT_A_TIME = 2**22
"""Of images whose activations are in memory together: 83 rows of 224 pixels."""


@dataclass(frozen=True)
class Direct:
    """Attributes:
    rows: that products average over, at most.
    iterations: of conjugate gradients, at most; the report says what residual is left.
    tolerance: residual over the right-hand side at which it ends.
    probes: random vectors that estimate the mean eigenvalue.
    """

    rows: int = 1024
    iterations: int = 200
    tolerance: float = 1e-4
    probes: int = 4


def direct_influence(
    recipe: Recipe, base: Settled, request: Request, settings: Direct, seed: int
) -> tuple[Settled, float, dict[str, Any]]:
    """The edited model, its seconds, and what the solve did.

    Raises:
        NonFiniteError: the step ruins the model, or the solve is of one that was.
    """
    start = now(request.calibration)
    data, (base_model, base_labels) = request.data, base
    model = copy.deepcopy(base_model).eval()
    everyone = torch.arange(len(data.after), device=data.after.images.device)
    if len(data.removed):  # as in the engine's closed form: the statistics hold removed images too
        recompute_statistics(model, data.after.images[chosen(everyone, Settings().statistics_rows, seed)])
    if data.dropped:  # the theorem for concepts has the kept objective's own gradient
        gradient = after_gradient(model, data, data.untouched, recipe.training["weight_decay"])
        u = vectors.scale(-1.0, gradient)
    else:
        u = edit_gradient(model, data, data.untouched)
    rows = data.after.take(chosen(everyone, settings.rows, seed))
    solution, damping = solved(model, outside_dropped(u, data.dropped), rows, recipe, settings, seed)
    Line(model, solution.vector).at(1.0)
    edited = with_head_rows(model, request.kept)
    after = torch.sigmoid(predict_logits(edited, data.after.images))
    if not bool(torch.isfinite(after).all()):
        raise NonFiniteError("predictions are not finite after the step")
    before = torch.sigmoid(predict_logits(base_model, data.before.images))
    label_predictor = closed_form_edit(
        base_labels,
        before=(before, data.before.classes),
        intermediate=torch.sigmoid(predict_logits(base_model, data.after.images))[:, request.kept],
        after=(after, data.after.classes),
        weight_decay=recipe.training["label_weight_decay"],
        dropped=data.dropped,
    )
    details = {
        "iterations": solution.iterations,
        "relative_residual": solution.relative_residual,
        "stop": str(solution.stop),
        "damping": damping,
        "curvature_rows": len(rows),
    }
    return (edited, label_predictor), now(request.calibration) - start, details


def solved(
    model: ConceptPredictor,
    u: vectors.ParameterVector,
    rows: LabelledImages,
    recipe: Recipe,
    settings: Direct,
    seed: int,
) -> tuple[Solution, float]:
    """``(F + dI)⁻¹ u`` and ``d``: the weight decay, at least a hundredth of the mean eigenvalue, the engine's rule."""
    at_a_time = max(16, min(256, PIXELS_AT_A_TIME // rows.images.shape[-1] ** 2))
    mask = (rows.concepts >= 0).to(rows.images.dtype)
    cached = PIXELS_AT_A_TIME // rows.images.shape[-1] ** 2
    ggn = GGN(model, rows.images, mask, chunk_size=at_a_time, cached_rows=cached)
    damping = max(recipe.training["weight_decay"], 0.01 * mean_eigenvalue(ggn, u, settings.probes, seed))
    solution = conjugate_gradients(
        ggn.matmul, u, damping=damping, max_iterations=settings.iterations, tolerance=settings.tolerance
    )
    return solution, damping


def mean_eigenvalue(ggn: GGN, like: vectors.ParameterMapping, probes: int, seed: int) -> float:
    """``tr F / P``, estimated by products with random signs (Hutchinson 1990): unbiased, and without factors."""
    flat = vectors.ravel(like)
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for _ in range(probes):
        signs = 2.0 * torch.randint(2, (len(flat),), generator=generator).to(flat) - 1
        probe = vectors.unravel(signs, like)
        total += vectors.dot(probe, ggn.matmul(probe))
    return total / probes / len(flat)
