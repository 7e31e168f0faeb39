"""What an attack finds when it may hardly ever be wrong: the true positive rate at a small false positive rate.

"Member" is said of every score above the threshold, which is the lowest one that lets at most the allowed share of
non-members be called a member. Intervals are Clopper and Pearson's, exact for a given threshold. A bootstrap would
count the threshold's own chance too, but it resamples the one to ten non-members that set it, and cannot make higher
scores than there are: at the rates in question it is no better founded. So the chance is shown instead: the false
positive rate that was measured has its own exact interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from worker.evidence.auc import CONFIDENCE, Scores

RATES = (0.01, 0.001)
Interval = tuple[float, float]


@dataclass(frozen=True)
class OperatingPoint:
    """Attributes:
    rate: the allowed false positive rate.
    found: true positive rate, the mean over the models attacked; None where it cannot be measured.
    interval: of ``found``.
    false_positives: the measured false positive rate, and its interval.
    reason: why nothing was measured.
    """

    rate: float
    found: float | None
    interval: Interval | None
    false_positives: tuple[float, Interval] | None
    reason: str | None = None


def operating_point(runs: Sequence[Scores], rate: float) -> OperatingPoint:
    """The operating point at a false positive rate, of one model or the mean of several over the same rows."""
    n, m = len(runs[0].non_members), len(runs[0].members)
    if n * rate < 1:
        reason = f"{n} non-members cannot show a false positive rate of {rate:g}: that takes {round(1 / rate)}"
        return OperatingPoint(rate, None, None, None, reason)
    found, wrong = np.mean([_rates(scores, rate) for scores in runs], axis=0)
    return OperatingPoint(
        rate,
        float(found),
        clopper_pearson(float(found) * m, m),
        (float(wrong), clopper_pearson(float(wrong) * n, n)),
    )


def clopper_pearson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Exact interval of a binomial share. A mean of several models' successes need not be a whole number."""
    tail = (1 - confidence) / 2
    failures = trials - successes
    low = 0.0 if successes <= 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return low, high


def _rates(scores: Scores, rate: float) -> tuple[float, float]:
    """True and false positive rate at the threshold."""
    descending = np.sort(np.asarray(scores.non_members, dtype=np.float64))[::-1]
    # The threshold: the score of the first non-member with which the rate would be exceeded.
    threshold = descending[min(int(np.floor(len(descending) * rate + 1e-9)), len(descending) - 1)]
    return float((scores.members > threshold).mean()), float((descending > threshold).mean())
