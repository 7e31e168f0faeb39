"""Area under the ROC curve of an attack, how sure it is, and how two models' areas compare.

The area is the share of (member, non-member) pairs in which the member has the higher score, ties counting half.

Which interval: with 50 rows on either side and more, DeLong's (DeLong, DeLong and Clarke-Pearson 1988): it assumes no
distribution, allows ties, and gives the covariance of two areas over the same rows. It is taken on the logit scale, so
that it stays within 0 and 1. Its variance is itself estimated from the rows, though: with few of them it is too small,
and it is zero where every pair is told right. There the interval is Hanley and McNeil's (1982), whose variance is a
function of the area, solved at the interval's ends (Newcombe 2006, "score" form). It assumes exponential scores away
from 0.5; at 0.5 its variance is the Mann-Whitney test's, which is exact for exchangeable rows without ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

Numbers = NDArray[np.floating[Any]]
FloatArray = NDArray[np.float64]

FEW_ROWS = 50
"""Fewer rows on a side give an interval and no verdict: with 49 members the interval of an
area of 0.5 is 0.5 ± 0.08 at best."""
CONFIDENCE = 0.95
_HALVINGS = 60


@dataclass(frozen=True)
class Scores:
    """An attack's scores of rows that were trained on and of rows that were not; higher says "member"."""

    members: Numbers
    non_members: Numbers


@dataclass(frozen=True)
class Area:
    """Attributes:
    value: the area.
    standard_error: of the value, as the method has it.
    low, high: ends of the interval.
    method: whose interval it is.
    """

    value: float
    standard_error: float
    low: float
    high: float
    method: Literal["delong", "hanley_mcneil"]


@dataclass(frozen=True)
class Difference:
    """Of two areas over the same rows, with DeLong's standard error (the areas' covariance counted)."""

    value: float
    standard_error: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Symmetric normal interval."""
        reach = quantile(confidence) * self.standard_error
        return self.value - reach, self.value + reach


def quantile(confidence: float) -> float:
    """Of the standard normal distribution, two-sided."""
    return float(ndtri(0.5 + confidence / 2))


def placements(scores: Scores) -> tuple[FloatArray, FloatArray]:
    """Per member ``[m]`` the share of non-members below it; per non-member ``[n]`` the share of members above it.

    Ties count half. The mean of either is the area; their variances are what DeLong's is made of.

    Raises:
        ValueError: a side is empty, or a score is not a number.
    """
    members, others = (np.asarray(side, dtype=np.float64) for side in (scores.members, scores.non_members))
    if not len(members) or not len(others):
        raise ValueError("an attack needs rows on both sides")
    if np.isnan(members).any() or np.isnan(others).any():
        raise ValueError("a score is not a number")
    return _share_below(members, others), 1.0 - _share_below(others, members)


def auc(scores: Scores) -> float:
    """The area."""
    return float(placements(scores)[0].mean())


def area(runs: Sequence[Scores], confidence: float = CONFIDENCE) -> Area:
    """The area with its interval; of several models over the same rows, the mean area.

    The standard error of a mean is the mean of the models' standard errors: an upper bound, reached when their areas
    move together, which is about what they do, since they share all rows.

    Raises:
        ValueError: there are no runs, or a side is empty.
    """
    if not runs:
        raise ValueError("no model was attacked")
    values = [auc(scores) for scores in runs]
    value = float(np.mean(values))
    m, n = len(runs[0].members), len(runs[0].non_members)
    if min(m, n) >= FEW_ROWS:
        error = float(np.mean([_delong_error([scores]) for scores in runs]))
        if error > 0 and 0 < value < 1:
            reach = quantile(confidence) * error / (value * (1 - value))
            centre = float(logit(value))
            return Area(value, error, float(expit(centre - reach)), float(expit(centre + reach)), "delong")
    low, high = _hanley_mcneil_interval(value, m, n, quantile(confidence))
    return Area(value, hanley_mcneil_variance(value, m, n) ** 0.5, low, high, "hanley_mcneil")


def difference(first: Sequence[Scores], second: Sequence[Scores]) -> Difference:
    """Mean area of the first models minus that of the second, all over the same rows.

    Raises:
        ValueError: fewer than two rows on a side, so that nothing varies.
    """
    value = float(np.mean([auc(s) for s in first]) - np.mean([auc(s) for s in second]))
    return Difference(value, _delong_error(first, second))


def hanley_mcneil_variance(value: float, m: int, n: int) -> float:
    """Variance of an area over ``m`` members and ``n`` others with exponential scores, or with negated ones.

    The greater of the two: which tail is the long one is not known, and this way an attack and its opposite are
    equally sure.
    """
    return max(_exponential_variance(value, m, n), _exponential_variance(1 - value, m, n))


def _exponential_variance(value: float, m: int, n: int) -> float:
    two_members = value / (2 - value)  # that both of two members are above a non-member
    two_others = 2 * value**2 / (1 + value)  # that a member is above both of two non-members
    spread = value * (1 - value) + (m - 1) * (two_members - value**2) + (n - 1) * (two_others - value**2)
    return max(0.0, spread) / (m * n)


def _delong_error(first: Sequence[Scores], second: Sequence[Scores] = ()) -> float:
    """Standard error of the mean area of the first models minus the mean area of the second."""
    variance = 0.0
    for side in (0, 1):
        contrast = np.mean([placements(s)[side] for s in first], axis=0)
        if second:
            contrast = contrast - np.mean([placements(s)[side] for s in second], axis=0)
        if len(contrast) < 2:
            raise ValueError("DeLong's variance needs two rows on each side")
        variance += float(contrast.var(ddof=1)) / len(contrast)
    return float(variance**0.5)


def _hanley_mcneil_interval(value: float, m: int, n: int, z: float) -> tuple[float, float]:
    """The areas of which ``value`` is less than ``z`` of their own standard errors away."""
    ends = []
    for outer in (0.0, 1.0):
        inside, outside = value, outer
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            if (value - middle) ** 2 <= z**2 * hanley_mcneil_variance(middle, m, n):
                inside = middle
            else:
                outside = middle
        ends.append((inside + outside) / 2)
    return ends[0], ends[1]


def _share_below(values: FloatArray, others: FloatArray) -> FloatArray:
    ascending = np.sort(others)
    below = np.searchsorted(ascending, values, side="left")
    not_above = np.searchsorted(ascending, values, side="right")
    return np.asarray((below + not_above) / (2 * len(others)), dtype=np.float64)
