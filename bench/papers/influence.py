"""Which concepts carry the predictions: by edits that drop each, held against training without each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from papers.methods import Workshop
from papers.protocols import INFLUENTIAL
from papers.scores import label_losses, predictions
from papers.states import CONCEPT, Draws, Edit
from worker.insight.importance import Agreement, agreement

Record = dict[str, Any]
SEED = 0
RANKED_BY = "closed_form"
"""The edit that the paper ranks by."""

CLASSES_SHOWN = 4
IMAGES_SHOWN = 4


def influence(shop: Workshop) -> Record:
    """The ranking, its agreement with retraining, and F1 after dropping the first and last concepts of it really.

    A concept's influence is the rise of the label loss on calibration rows without it; F1 is of test rows.
    """
    draws, names = Draws(shop.data, SEED), shop.data.concepts
    rises = {method: _rises(shop, draws, method) for method in (RANKED_BY, "retrain")}
    overall = {method: rise[:, 0] for method, rise in rises.items()}
    order = _ranked(overall[RANKED_BY])
    agreed = agreement_of(overall[RANKED_BY], overall["retrain"])
    points: list[Record] = []
    for side, ranked in (("most", order), ("least", order[::-1])):
        for count in range(1, max(1, min(INFLUENTIAL, len(names) // 2)) + 1):
            edit = Edit(CONCEPT, draws.all, draws.without_concepts(ranked[:count]))
            for method in _edits_of(shop):
                outcome = shop.by(method, edit, SEED)
                scores = asdict(shop.scores(outcome.model, edit.after)) if outcome.model else {"label_f1": None}
                points.append({"side": side, "method": method, "count": count, "seconds": outcome.seconds, **scores})
    base, _ = shop.trained(draws.all, SEED)
    return {
        "ranked_by": RANKED_BY,
        "before": asdict(shop.scores(base, draws.all)),
        "concepts": [
            {"name": names[j], **{f"rise_{method}": _finite(values[j]) for method, values in overall.items()}}
            for j in order
        ],
        "agreement": asdict(agreed),
        "classes": [_class(shop, rises, c) for c in _shown(shop)],
        "points": points,
    }


def agreement_of(estimate: Tensor, truth: Tensor) -> Agreement:
    """Over the concepts without which both have a model; ``[k]`` each, NaN where there is none."""
    known = estimate.isfinite() & truth.isfinite()
    if int(known.sum()) < 2:
        return Agreement(0, 0, 0, None)
    return agreement(estimate[known], truth[known], INFLUENTIAL)


def _edits_of(shop: Workshop) -> Sequence[str]:
    return [method for method in shop.options.methods if method != "cbm_if"]


def _rises(shop: Workshop, draws: Draws, method: str) -> Tensor:
    """Rise of the label loss without each concept ``[k, 1 + classes]``; NaN where there is no row or no model."""
    classes, calibration = len(shop.data.classes), shop.data.calibration
    before = label_losses(shop.trained(draws.all, SEED)[0], calibration, classes)
    rises = []
    for j in draws.all.columns:
        model = shop.by(method, Edit(CONCEPT, draws.all, draws.without_concepts([j])), SEED).model
        without = (
            before.new_full(before.shape, math.nan) if model is None else label_losses(model, calibration, classes)
        )
        rises.append(without - before)
    return torch.stack(rises)


def _ranked(rise: Tensor) -> list[int]:
    """Greatest rise first; NaN last."""
    order: list[int] = rise.nan_to_num(nan=-math.inf).argsort(descending=True, stable=True).tolist()
    return order


def _shown(shop: Workshop) -> list[int]:
    """The classes with the most calibration rows, of those that the test rows have."""
    sizes = torch.bincount(shop.data.calibration.classes, minlength=len(shop.data.classes))
    tested = torch.bincount(shop.data.test.classes, minlength=len(shop.data.classes)) > 0
    order = sizes.argsort(descending=True, stable=True).tolist()
    return [c for c in order if tested[c] and sizes[c]][:CLASSES_SHOWN]


def _class(shop: Workshop, rises: dict[str, Tensor], c: int) -> Record:
    """Images of a class, and the concepts that its rows need most, by edits and by retraining."""
    positions = (shop.data.test.classes == c).nonzero().squeeze(1)[:IMAGES_SHOWN]
    rows = shop.data.test.take(positions)
    base, _ = shop.trained(Draws(shop.data, SEED).all, SEED)
    probabilities, _ = predictions(base, rows)
    size = min(INFLUENTIAL, len(shop.data.concepts))
    return {
        "class": shop.data.classes[c],
        "test_rows": positions.tolist(),
        **{
            method: [
                {
                    "name": shop.data.concepts[j],
                    "rise": _finite(rise[j, 1 + c]),
                    "labels": rows.concepts[:, j].tolist(),
                    "probabilities": [round(p, 4) for p in probabilities[:, j].tolist()],
                }
                for j in _ranked(rise[:, 1 + c])[:size]
            ]
            for method, rise in rises.items()
        },
    }


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def lines(result: Record) -> list[str]:
    """The influence as text."""
    agreed = Agreement(**result["agreement"])
    rank = "–" if agreed.rank_correlation is None else f"{agreed.rank_correlation:.2f}"
    found = [
        f"of the {agreed.size} most influential concepts by {result['ranked_by']}, retraining finds {agreed.top}; of "
        f"the {agreed.size} least, {agreed.bottom}; rank correlation {rank}",
        "most influential: " + ", ".join(concept["name"] for concept in result["concepts"][:INFLUENTIAL]),
        f"label F1 before: {result['before']['label_f1']:.4f}",
    ]
    for side, method in dict.fromkeys((point["side"], point["method"]) for point in result["points"]):
        same = [point for point in result["points"] if (point["side"], point["method"]) == (side, method)]
        cells = [
            f"{point['count']}: " + ("none" if point["label_f1"] is None else f"{point['label_f1']:.4f}")
            for point in same
        ]
        found.append(f"label F1 without the {side:5} influential, {method:12} " + "  ".join(cells))
    return found
