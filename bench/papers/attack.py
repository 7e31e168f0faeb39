"""RMIA on removed rows and rows never seen: what removal does to the scores (:mod:`worker.evidence.rmia`).

The paper mis-expands RMIA and fits Gaussians; here it is the attack of Zarifzadeh et al. (2024), which it cites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rivals import Settled

from papers.methods import Workshop
from papers.protocols import ATTACKED
from papers.states import REMOVAL, Draws, Edit, State
from worker.cbm.training import concept_losses, predict_logits
from worker.data.tensors import LabelledImages
from worker.editing.bench import known_labels
from worker.evidence.auc import area
from worker.evidence.audit import Losses, References, rmia_attack_on
from worker.evidence.design import inclusion, population_split, reference_seeds
from worker.evidence.membership import OUTPUTS, RowLosses

Record = dict[str, Any]
SEED = 0
REFERENCES = 4
"""Models that were trained on half of the rows in question each, so that every row is in half of them."""


def membership(shop: Workshop) -> list[Record]:
    """Scores of removed rows and non-members under the model before, after each method, and retrained.

    200 members are removed; 200 test rows are non-members and as many the population; fewer where there are not enough.
    """
    draws = Draws(shop.data, SEED)
    members = draws.leaving(max(1, min(ATTACKED, len(shop.data.train) // 4)))
    edit = Edit(REMOVAL, draws.all, draws.without_rows(members))
    removed = shop.data.train.take(members.to(shop.data.train.sample_ids.device))
    test = shop.data.test.take(_some(len(shop.data.test), 2 * ATTACKED).to(removed.sample_ids.device))
    references = _references(shop, edit.after, removed, test)
    models: dict[str, Settled] = {"before": shop.trained(edit.before, SEED)[0]}
    for method in shop.options.methods:
        model = shop.by(method, edit, SEED).model
        if model is not None:
            models[method] = model
    found: list[Record] = []
    for method, model in models.items():
        losses = Losses(row_losses(model, removed), row_losses(model, test))
        for output in OUTPUTS:
            scores = rmia_attack_on(losses, output, references)
            measured = area([scores])
            found.append(
                {
                    "method": method,
                    "output": output,
                    "auc": measured.value,
                    "interval": [measured.low, measured.high],
                    "mean_removed": float(np.mean(scores.members)),
                    "mean_non_members": float(np.mean(scores.non_members)),
                    "population": len(references.population),
                    "references": REFERENCES,
                    "removed": scores.members.tolist(),
                    "non_members": scores.non_members.tolist(),
                }
            )
    return found


def _some(n: int, count: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:count].sort().values


def _references(shop: Workshop, kept: State, removed: LabelledImages, test: LabelledImages) -> References:
    """Trained on the kept rows and a half of the removed and test rows each."""
    population, non_members = population_split(len(test), SEED)
    trained_on = inclusion(REFERENCES, len(removed) + len(test), SEED)
    candidates = removed.joined(test)
    losses = []
    for number, seed in enumerate(reference_seeds(REFERENCES, SEED)):
        chosen = torch.from_numpy(trained_on[number]).to(candidates.sample_ids.device)
        state = State(f"reference {number}", kept.rows.joined(candidates.take(chosen)), kept.columns)
        model, _ = shop.trained(state, seed)
        losses.append(Losses(row_losses(model, removed), row_losses(model, test)))
    cut = len(removed)
    return References(population, non_members, losses, trained_on[:, :cut], trained_on[:, cut:])


def row_losses(model: Settled, rows: LabelledImages) -> RowLosses:
    """What the attack sees of rows with labels of all concepts."""
    logits = predict_logits(model[0], rows.images)
    labels = torch.nn.functional.cross_entropy(
        model[1].logits(torch.sigmoid(logits)), rows.classes.long(), reduction="none"
    )
    return RowLosses(
        concept_losses(logits, rows.concepts).double().cpu().numpy(),
        known_labels(rows).long().cpu().numpy(),
        labels.double().cpu().numpy(),
    )


def lines(found: Sequence[Record]) -> list[str]:
    """The attack as text."""
    first = found[0]
    texts = [
        f"RMIA on {len(first['removed'])} removed rows and {len(first['non_members'])} non-members; population "
        f"{first['population']}, {first['references']} reference models"
    ]
    for one in found:
        low, high = one["interval"]
        texts.append(
            f"{one['output']:9} {one['method']:12} mean score of removed rows {one['mean_removed']:.4f}, of "
            f"non-members {one['mean_non_members']:.4f}; AUC {one['auc']:.3f} ({low:.3f}–{high:.3f})"
        )
    return texts
