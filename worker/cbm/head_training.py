"""Heads and label predictor of a model whose backbone is frozen, trained to convergence on its features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor, fit_label_predictor
from worker.cbm.linear_heads import HeadObjective, feature_matrix, fit_heads
from worker.cbm.training import predict_logits
from worker.data.tensors import LabelledImages

LABEL_TOLERANCE = 1e-11
"""Of the label predictor's gradient, its largest entry: a hundredth of what the concept heads' gradients may be left at
changes its weights less than double precision shows."""


def head_view(model: ConceptPredictor) -> ConceptPredictor:
    """A predictor with the model's head, for rows that are features."""
    view = ConceptPredictor(nn.Flatten(), model.head.in_features, model.head.out_features)
    view.head.load_state_dict(model.head.state_dict())
    return view.to(model.head.weight.device).eval()


def train_heads(
    training: Mapping[str, Any], rows: LabelledImages, classes: int, start: ConceptPredictor | None = None
) -> tuple[ConceptPredictor, LabelPredictor, dict[str, Any]]:
    """The converged head view and label predictor of rows that are features, and the history of the training.

    Args:
        start: where Newton's method starts, zeros if None; the minimiser does not depend on it.
    """
    features = feature_matrix(rows)
    k, size = rows.concepts.shape[1], features.shape[1]
    theta = features.new_zeros(k, size) if start is None else joint(start)
    objective = HeadObjective(features, rows.concepts, training["weight_decay"])
    fit = fit_heads(objective, theta)
    model = view_of(fit.theta)
    label_predictor = converged_labels(model, rows, classes, training["label_weight_decay"])
    return (
        model,
        label_predictor,
        {
            "frozen_backbone": True,
            "newton_steps": fit.steps,
            "concept_gradient_norm": float(objective.gradients(fit.theta).norm(dim=1).max()),
        },
    )


def joint(model: ConceptPredictor) -> Tensor:
    """The head's rows with their biases ``[k, d + 1]``, in double precision."""
    return torch.cat([model.head.weight, model.head.bias[:, None]], dim=1).detach().double()


def view_of(theta: Tensor) -> ConceptPredictor:
    """The head view of ``theta`` ``[k, d + 1]``, rounded to single precision as it is stored and served."""
    model = ConceptPredictor(nn.Flatten(), theta.shape[1] - 1, len(theta)).to(theta.device)
    with torch.no_grad():
        model.head.weight.copy_(theta[:, :-1])
        model.head.bias.copy_(theta[:, -1])
    return model.eval()


def converged_labels(
    model: ConceptPredictor,
    rows: LabelledImages,
    classes: int,
    weight_decay: float,
    start: LabelPredictor | None = None,
) -> LabelPredictor:
    """The label predictor on the probabilities of the stored head."""
    probabilities = torch.sigmoid(predict_logits(model, rows.images).double())
    return fit_label_predictor(
        probabilities, rows.classes, classes, weight_decay=weight_decay, start=start, tolerance=LABEL_TOLERANCE
    )
