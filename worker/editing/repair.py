"""A short warm pass over the edited data set, for when the rest of the data paid for an edit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from worker.cbm.arithmetic import quick_type
from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.training import concept_losses
from worker.data.tensors import LabelledImages

TOUCHED_SHARE = 0.25
"""Of each batch at least, where any rows are touched: these are seen more often, at no greater weight."""


def warm_pass(
    model: ConceptPredictor,
    rows: LabelledImages,
    touched: Tensor,
    *,
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    share: float = 0.4,
    seed: int = 0,
) -> int:
    """``share`` of an epoch of training as it was, at a rate that falls to zero; returns how many steps were taken.

    In train mode: a pass with frozen statistics undoes little of what a step cost, measured on a net with BatchNorm.
    Batches draw rows that were touched more often, and weigh them less, so that the mean is that over all rows.

    Args:
        touched: positions of corrected and added rows.
    """
    device = rows.images.device
    batch_size = min(batch_size, len(rows))
    steps = max(1, round(share * len(rows) / batch_size))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(rows), dtype=torch.bool, device=device)
    mask[touched] = True
    strata = [part.nonzero().squeeze(1) for part in (mask, ~mask)]
    sizes = _sizes(len(strata[0]), len(rows), batch_size)
    drawn = [_drawn(part, steps * size, generator) for part, size in zip(strata, sizes, strict=True)]
    weights = torch.cat(
        [
            torch.full((size,), len(part) / len(rows) * batch_size / max(1, size), device=device)
            for part, size in zip(strata, sizes, strict=True)
        ]
    ).to(rows.images.dtype)
    quick = quick_type(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        batch = torch.cat([part[step * size : (step + 1) * size] for part, size in zip(drawn, sizes, strict=True)])
        with torch.autocast(device.type, quick, enabled=quick == torch.bfloat16):
            logits = model(rows.images[batch].contiguous(memory_format=torch.channels_last))
        loss = (concept_losses(logits.to(weights.dtype), rows.concepts[batch]) * weights).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.eval()
    return steps


def _sizes(touched: int, rows: int, batch_size: int) -> tuple[int, int]:
    """How many touched and other rows a batch has."""
    if touched in (0, rows):
        return (batch_size, 0) if touched else (0, batch_size)
    fair = round(batch_size * touched / rows)
    size = min(max(fair, round(TOUCHED_SHARE * batch_size), 1), batch_size - 1)
    return size, batch_size - size


def _drawn(positions: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many of the positions, each as often as the others up to one."""
    if not count:
        return positions[:0]
    rounds = [torch.randperm(len(positions), generator=generator) for _ in range(-(-count // len(positions)))]
    return positions[torch.cat(rounds)[:count].to(positions.device)]
