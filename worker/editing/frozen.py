"""Edits of a model whose backbone is frozen: exact, as its heads are the minimisers of strictly convex objectives.

Each concept's old optimum is where Newton's method on the edited data starts; the first step is certified
(:mod:`worker.editing.certificate`), the rest converge to a stated gradient norm. What comes out is what training anew
comes to, to that norm over ``λ``. A concept whose rows and labels the edit leaves as they are keeps its weights byte
for byte. No curvature factors are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.head_training import converged_labels, joint, view_of
from worker.cbm.label_predictor import LabelObjective, LabelPredictor
from worker.cbm.linear_heads import TOLERANCE, Fit, HeadObjective, feature_matrix, fit_heads
from worker.cbm.metrics import concept_metrics, label_metrics
from worker.cbm.training import predict_logits
from worker.data.tensors import LabelledImages
from worker.editing.certificate import GAMMA, SHARP_GAMMA, spectral_norm, step_bound
from worker.editing.edited_data import EditedData
from worker.editing.engine import Timings
from worker.editing.growth import grown_label_predictor
from worker.editing.guard import EditRefused, refusal_of, require_finite, require_utility

COVERS = (
    "the concept heads, as functions of fixed features of the edited train rows: the bound limits the gradient that "
    "one Newton step leaves of the edited objective, the distances how far the stored weights are from its minimiser"
)
DOES_NOT_COVER = (
    "the backbone: it must not have been trained on rows that are removed, and nothing here changes it",
    "privacy: no noise perturbs the objective, so the bound is no (epsilon, delta) guarantee of removal",
    "the label predictor: it is trained on the edited heads' probabilities, with a residual of its own",
    "earlier versions, stored images and whatever else keeps removed rows",
)


@dataclass(frozen=True)
class FrozenEdit:
    """Attributes:
    model: the base version's head view; not modified.
    label_predictor: the base version's.
    data: training rows before and after as features, in the frame's columns, new concepts last.
    calibration: held-out rows of the edited data set as features, dropped concepts unknown.
    concepts: names of the frame's columns.
    classes: names of the classes.
    training: the model's training settings.
    """

    model: ConceptPredictor
    label_predictor: LabelPredictor
    data: EditedData
    calibration: LabelledImages
    concepts: list[str]
    classes: list[str]
    training: Mapping[str, Any]

    @property
    def kept(self) -> list[int]:
        """The frame's columns that are not dropped."""
        return [j for j in range(len(self.concepts)) if j not in set(self.data.dropped)]


@dataclass(frozen=True)
class FrozenOutcome:
    """The edited head view and label predictor, the numbers, and the guard's refusal if there is one."""

    model: ConceptPredictor
    label_predictor: LabelPredictor
    report: dict[str, Any]
    refusal: EditRefused | None = None


def attempt(
    given: FrozenEdit, *, tolerance: Mapping[str, float], progress: Callable[[str, int, int], None]
) -> FrozenOutcome:
    """Edit the heads so that they are what training on the edited data set makes of them; measure, and judge.

    Raises:
        EditRefused: the heads are not finite numbers.
    """
    data, timings, weight_decay = given.data, Timings(), float(given.training["weight_decay"])
    with timings.stage("preparing"):
        features = feature_matrix(data.after)
        start = joint(given.model)
        start = torch.cat([start, start.new_zeros(len(data.new), start.shape[1])])
        touched = _touched(data, given.kept)
        objective = HeadObjective(features, data.after.concepts, weight_decay)
    with timings.stage("solving"):
        progress("solving", 0, 1)
        part = objective.of(touched)
        fit = fit_heads(part, start[touched])
        theta = start.clone()
        theta[touched] = fit.theta
    with timings.stage("certificate"):
        certificate = _certificate(given, part, start, touched, fit)
    kept = torch.tensor(given.kept, device=theta.device)
    edited = view_of(theta[kept])
    with timings.stage("label_predictor"):
        progress("label_predictor", 0, 1)
        require_finite(*edited.state_dict().values())
        warm = grown_label_predictor(given.label_predictor, data.new).without_concepts(list(data.dropped))
        decay = float(given.training["label_weight_decay"])
        label_predictor = converged_labels(edited, data.after, len(given.classes), decay, warm)
    with timings.stage("guard"):
        before = _metrics(given, given.model, given.label_predictor, edited=False)
        after = _metrics(given, edited, label_predictor, edited=True)
        stored = joint(edited)
        norms = objective.of(kept).gradients(stored).norm(dim=1)
        certificate["stored"] = _stored(norms, stored, weight_decay)
        certificate["label_predictor"] = _label_residual(edited, label_predictor, data.after, len(given.classes), decay)
    shared = [j for j in given.kept if j not in set(data.new)]
    old, new = start[shared], stored[: len(shared)]
    step = float((new - old).norm())
    report = {
        "step": {
            "norm": step,
            "relative_norm": step / float(start.norm()) if float(start.norm()) else 0.0,
            "damping": 0.0,
            "iterations": fit.products,
            "newton_steps": fit.steps,
            "steps": [],
            "concepts_solved": len(touched),
            "gradient_norm": {
                "before": float(objective.of(kept).gradients(start[kept]).norm()),
                "after": float(norms.norm()),
            },
            "tolerance": TOLERANCE,
        },
        "calibration": {"before": before, "after": after},
        "certificate": certificate,
        "timings": timings.seconds,
        "seeds": {},
    }
    return FrozenOutcome(edited, label_predictor, report, refusal_of(lambda: require_utility(before, after, tolerance)))


def _touched(data: EditedData, kept: list[int]) -> Tensor:
    """Columns whose objective the edit changes: all where rows leave or come, else those with a changed label."""
    device = data.after.concepts.device
    columns = torch.tensor(kept, device=device)
    if len(data.removed) or len(data.added):
        return columns
    changed = torch.zeros(data.after.concepts.shape[1], dtype=torch.bool, device=device)
    old = data.before.concepts[data.before_of(data.fixed)]
    changed |= (old != data.after.concepts[data.fixed]).any(dim=0)
    changed[list(data.new)] = True
    return columns[changed[columns]]


def _certificate(
    given: FrozenEdit, objective: HeadObjective, start: Tensor, touched: Tensor, fit: Fit
) -> dict[str, Any]:
    """The bound of the first Newton step, per concept and worst. New concepts had no optimum to step from."""
    new = set(given.data.new)
    old = torch.tensor([i for i, j in enumerate(touched.tolist()) if j not in new], dtype=torch.long)
    old = old.to(touched.device)
    norm = spectral_norm(objective.features)
    bound = step_bound(objective.of(old), start[touched[old]], fit.first_step[old], norm)
    names = [given.concepts[j] for j in touched[old].tolist()]
    values = zip(names, bound.guo.tolist(), bound.sharp.tolist(), bound.residual.tolist(), strict=True)
    concepts = {
        name: {"bound": guo, "sharp_bound": sharp, "residual": residual} for name, guo, sharp, residual in values
    }
    worst = max(concepts, key=lambda name: concepts[name]["residual"], default=None)
    return {
        "method": "Newton step with residual bound (Guo et al. 2020), then converged",
        "covers": COVERS,
        "does_not_cover": list(DOES_NOT_COVER),
        "gamma": {"bound": GAMMA, "sharp_bound": SHARP_GAMMA},
        "spectral_norm": norm,
        "newton_step": {
            "concepts": concepts,
            "worst_concept": worst,
            "worst": {
                name: max((values[name] for values in concepts.values()), default=0.0)
                for name in ("bound", "sharp_bound", "residual")
            },
        },
        "converged": {
            "gradient_norm": float(objective.gradients(fit.theta).norm(dim=1).max()) if len(touched) else 0.0,
            "tolerance": TOLERANCE,
        },
    }


def _stored(norms: Tensor, theta: Tensor, weight_decay: float) -> dict[str, float]:
    """Of the weights as they are stored, in single precision: the worst gradient, and how far off that can be."""
    worst = float(norms.max())
    return {
        "gradient_norm": worst,
        "distance_bound": worst / weight_decay,
        "largest_rounding": float(theta.abs().max()) * torch.finfo(torch.float32).eps / 2,
    }


def _label_residual(
    model: ConceptPredictor, label_predictor: LabelPredictor, rows: LabelledImages, classes: int, weight_decay: float
) -> dict[str, float]:
    probabilities = torch.sigmoid(predict_logits(model, rows.images).double())
    objective = LabelObjective(probabilities, rows.classes, classes, weight_decay)
    theta = torch.cat([label_predictor.weight, label_predictor.bias[:, None]], dim=1)
    norm = float(objective.gradient(theta).norm())
    return {"gradient_norm": norm, "distance_bound": norm / weight_decay}


def _metrics(
    given: FrozenEdit, model: ConceptPredictor, label_predictor: LabelPredictor, *, edited: bool
) -> dict[str, float]:
    """F1 scores on the calibration split, over the concepts that both versions have."""
    probabilities = torch.sigmoid(predict_logits(model, given.calibration.images))
    predicted = label_predictor.logits(probabilities).argmax(dim=1)
    both = [j for j in given.kept if j not in set(given.data.new)]
    columns = list(range(len(both))) if edited else both
    concepts = concept_metrics(
        probabilities[:, columns].cpu().numpy(),
        given.calibration.concepts[:, both].cpu().numpy(),
        [given.concepts[j] for j in both],
    )
    labels = label_metrics(predicted.cpu().numpy(), given.calibration.classes.cpu().numpy(), len(given.classes))
    return {"concept_f1": concepts["concept_f1"], **labels}
