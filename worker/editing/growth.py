"""New concepts: the head gains rows, fitted convexly on the features that the backbone has already."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.cbm.arithmetic import Twin
from worker.cbm.concept_predictor import HEAD, ConceptPredictor, with_head_rows
from worker.cbm.label_predictor import LabelPredictor
from worker.curvature import Factors, add_outputs
from worker.data.tensors import LabelledImages

STRENGTHS = (1e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""L2 of the new rows, strongest first; the held-out loss says where to stop, as an early stop says in training."""


def grown(
    model: ConceptPredictor, new: tuple[int, ...], train: LabelledImages, held_out: LabelledImages
) -> ConceptPredictor:
    """A copy of the model whose head has further rows for the columns ``new``, the last of the frame's.

    Each row is a logistic regression on the penultimate features of the train rows whose label is known. The features
    were not made for it, so its L2 is chosen by the held-out rows.
    """
    old = model.head.out_features
    if list(new) != list(range(old, old + len(new))):
        raise ValueError("new concepts are the last columns of the frame")
    result = with_head_rows(model, list(range(old)))
    head = nn.Linear(model.head.in_features, old + len(new)).to(model.head.weight)
    twin = Twin(model)
    weights = logistic_rows(
        twin.features(train.images), train.concepts[:, new], twin.features(held_out.images), held_out.concepts[:, new]
    )
    with torch.no_grad():
        head.weight.copy_(torch.cat([model.head.weight, weights[:, :-1].to(head.weight)]))
        head.bias.copy_(torch.cat([model.head.bias, weights[:, -1].to(head.bias)]))
    result.head = head
    return result.eval()


def logistic_rows(
    features: Tensor, labels: Tensor, held_out_features: Tensor, held_out_labels: Tensor, iterations: int = 4
) -> Tensor:
    """Weights ``[a, d]`` of logistic regressions of labels ``[n, a]`` (0, 1, −1 unknown) on features ``[n, d]``.

    Newton's method along falling L2, each strength started from the last; per concept the strength with the least
    held-out loss is kept.
    """
    scale = features.square().mean(dim=0).sqrt().clamp_min(1e-8)  # one L2 for features of any size
    features, held_out_features = features / scale, held_out_features / scale
    found = []
    for j in range(labels.shape[1]):
        known, judged = labels[:, j] >= 0, held_out_labels[:, j] >= 0
        x, c = features[known], labels[known, j].to(features)
        weights = features.new_zeros(features.shape[1])
        best, best_weights = float("inf"), weights
        for strength in STRENGTHS:
            weights = _newton(x, c, weights, strength, iterations)
            logits = held_out_features[judged] @ weights
            loss = float(binary_cross_entropy_with_logits(logits, held_out_labels[judged, j].to(logits)))
            if not loss < best:  # also where no held-out label is known: then the strongest stays
                break
            best, best_weights = loss, weights
        found.append(best_weights / scale)
    return torch.stack(found)


def _newton(x: Tensor, c: Tensor, weights: Tensor, strength: float, iterations: int) -> Tensor:
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(iterations):
        p = torch.sigmoid(x @ weights)
        gradient = x.mT @ (p - c) / max(1, len(x)) + strength * weights
        hessian = (x * (p * (1 - p))[:, None]).mT @ x / max(1, len(x)) + strength * identity
        step = torch.linalg.solve(hessian, gradient)
        weights = weights - step
        if float(step.norm()) <= 1e-2 * float(weights.norm()):  # finer than what the held-out rows can tell
            break
    return weights


def grown_factors(factors: Factors, new: tuple[int, ...]) -> Factors:
    """The factors with rows of mean curvature for the new concepts: a preconditioner until there is a refit."""
    return add_outputs(factors, HEAD, len(new))


def grown_label_predictor(label_predictor: LabelPredictor, new: tuple[int, ...]) -> LabelPredictor:
    """The same predictor with columns of zeros for the new concepts."""
    weight = label_predictor.weight
    return LabelPredictor(torch.cat([weight, weight.new_zeros(len(weight), len(new))], dim=1), label_predictor.bias)
