"""Withdrawn labels are forgotten: their loss rises to what it would be, had they never been given.

Their rows stay, with whatever else is known of them. So a withdrawn label is treated as a row of its own that leaves:
the same image with that label alone. The gradient of its leaving is that of the label, and a little of the L2's, as for
removed rows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.data.tensors import LabelledImages
from worker.editing.bench import Bench, Step
from worker.editing.edited_data import UNKNOWN, EditedData
from worker.editing.forgetting import forget
from worker.editing.unseen import Level, transported


def withdraw(bench: Bench, data: EditedData) -> list[Step]:
    """Let withdrawn labels look like labels never seen, by the movement for removed rows."""
    rows = data.withdrawals()
    if not len(rows):
        return []
    # Ids of their own: the rows themselves stay.
    leaving = replace(rows, sample_ids=-1 - torch.arange(len(rows), device=rows.sample_ids.device))
    alone = EditedData(data.after.joined(leaving), data.after, data.dropped)
    level = _unseen_level(bench, data, bench.measured(leaving))
    return [replace(step, phase="withdraw") for step in forget(bench, alone, level)]


def _unseen_level(bench: Bench, data: EditedData, rows: LabelledImages) -> Level:
    """The mean over rows of the losses that their withdrawn labels should have, had they not been given.

    As for removed rows (:mod:`worker.editing.unseen`), but label by label and concept by concept: a label's loss among
    those of its concept in training rows tells its loss among those of its concept in held-out rows.
    """
    losses = label_losses(bench.twin.logits(rows.images), rows.concepts)
    trained = data.after.take(bench.sample(data.untouched))
    here = label_losses(bench.twin.logits(trained.images), trained.concepts) if len(trained) else losses[:0]
    there = label_losses(bench.held_out, bench.calibration.concepts)
    total = variance = 0.0
    for j in torch.isfinite(losses).any(dim=0).nonzero().squeeze(1).tolist():
        own, seen, unseen = (_known(of[:, j]) for of in (losses, here, there))
        if not len(seen) or not len(unseen):  # nobody else has the label: nothing is told of it
            total += float(own.sum())
            continue
        expected, chance = transported(own, seen, unseen)
        total += float(expected.sum())
        spread = float(unseen.var()) / len(unseen) if len(unseen) > 1 else float(unseen.square().sum())
        variance += float(chance.sum()) + len(own) ** 2 * spread
    start, error = float(losses.nansum()) / len(rows), math.sqrt(variance) / len(rows)
    value = total / len(rows)
    return Level(*(max(start, bound) for bound in (value, value - error, value + error)))


def label_losses(logits: Tensor, concepts: Tensor) -> Tensor:
    """Losses of single labels ``[n, k]``; NaN where a label is unknown."""
    losses = binary_cross_entropy_with_logits(logits, concepts.clamp_min(0).to(logits.dtype), reduction="none")
    return torch.where(concepts == UNKNOWN, torch.full_like(losses, math.nan), losses)


def _known(losses: Tensor) -> Tensor:
    return losses[torch.isfinite(losses)]
