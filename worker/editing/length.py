"""How far to go along a direction: never unmeasured.

Losses are means over rows as functions of the scale ``s`` of the step, ``s = 1`` being the solve's full length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Loss = Callable[[float], float]


def scale_reaching(loss: Loss, level: float, *, most: float, iterations: int = 12) -> float:
    """The scale in ``[0, most]`` at which a rising ``loss`` reaches ``level``, by bisection.

    0 where it is there from the start, ``most`` where it never gets there. A loss that is not finite counts as past
    the level: the model has broken on the way.
    """

    def past(scale: float) -> bool:
        value = loss(scale)
        return not math.isfinite(value) or value >= level

    if past(0.0):
        return 0.0
    low, high = 0.0, most
    if not past(most):
        return most
    for _ in range(iterations):
        middle = (low + high) / 2
        if past(middle):
            high = middle
        else:
            low = middle
    return low


@dataclass(frozen=True)
class Trial:
    """Losses measured at one scale: of the edited rows, and of the calibration split."""

    scale: float
    edited: float
    held_out: float


def best_trial(trials: Sequence[Trial], *, level: float, held_out_limit: float) -> Trial:
    """Where to stop on the way to a loss that should fall to ``level`` and no further.

    The first scale, in ascending order, that reaches the level with the held-out loss within its limit; else the one
    with the least edited loss among those within the limit. The trial at scale 0 is always within.

    Args:
        trials: in ascending order of scale, the first at 0.
        held_out_limit: the highest held-out loss that is acceptable.
    """
    start, *rest = trials
    fit = [start] + [
        trial
        for trial in rest
        if math.isfinite(trial.edited) and math.isfinite(trial.held_out) and trial.held_out <= held_out_limit
    ]
    reached = next((trial for trial in fit if trial.edited <= level), None)
    return reached or min(fit, key=lambda trial: trial.edited)


@dataclass(frozen=True)
class Estimate:
    """One estimate of how far the removed rows' loss should rise, and the standard error of its logarithm."""

    rise: float
    log_error: float


def combined_rise(estimates: Sequence[Estimate]) -> float:
    """Geometric mean of the rises, weighted by inverse variance; 0 if any estimate says to stay."""
    if any(estimate.rise <= 0 for estimate in estimates):
        return 0.0
    weights = [1 / estimate.log_error**2 for estimate in estimates]
    total = sum(weight * math.log(e.rise) for weight, e in zip(weights, estimates, strict=True))
    return math.exp(total / sum(weights))


def combined_error(estimates: Sequence[Estimate]) -> float:
    """Standard error of the logarithm of :func:`combined_rise`, the estimates being independent."""
    return math.sqrt(1 / sum(1 / estimate.log_error**2 for estimate in estimates))
