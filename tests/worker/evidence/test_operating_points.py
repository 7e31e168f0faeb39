"""True positive rates at small false positive rates: thresholds, ties, and what cannot be measured."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from worker.evidence.auc import Scores
from worker.evidence.operating_points import clopper_pearson, operating_point


def test_a_rate_that_the_rows_cannot_show_is_not_reported() -> None:
    some = Scores(np.ones(10), np.zeros(999))
    point = operating_point([some], 0.001)
    assert (point.found, point.interval, point.false_positives) == (None, None, None)
    assert point.reason == "999 non-members cannot show a false positive rate of 0.001: that takes 1000"
    assert operating_point([Scores(np.ones(10), np.zeros(1000))], 0.001).found == 1.0


def test_by_hand() -> None:
    """A hundred non-members, one may be called a member: what lies above the second highest is one."""
    others = np.arange(100.0)
    point = operating_point([Scores(np.array([99.5, 98.5, 98.0, 97.0]), others)], 0.01)
    assert point.found == 0.5
    assert point.false_positives is not None
    assert point.false_positives[0] == 0.01
    assert point.interval == pytest.approx(clopper_pearson(2, 4))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_best_threshold_that_keeps_the_rate(seed: int) -> None:
    """Against a walk over all thresholds, with ties."""
    random = np.random.default_rng(seed)
    some = Scores(random.normal(size=80).round(1) + 0.5, random.normal(size=230).round(1))
    best = max(
        float((some.members >= t).mean())
        for t in [*some.members, *some.non_members, np.inf]
        if (some.non_members >= t).mean() <= 0.01
    )
    point = operating_point([some], 0.01)
    assert point.found == best
    assert point.false_positives is not None
    assert point.false_positives[0] <= 0.01


def test_tied_at_the_top_nothing_can_be_told() -> None:
    point = operating_point([Scores(np.ones(50), np.ones(200))], 0.01)
    assert (point.found, point.false_positives and point.false_positives[0]) == (0.0, 0.0)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1000)])
def test_clopper_pearson_s_ends_have_the_tails_that_define_them(successes: int, trials: int) -> None:
    low, high = clopper_pearson(successes, trials)
    assert low == 0.0 if successes == 0 else binom.sf(successes - 1, trials, low) == pytest.approx(0.025, rel=1e-6)
    assert high == 1.0 if successes == trials else binom.cdf(successes, trials, high) == pytest.approx(0.025, rel=1e-6)


def test_of_several_models_it_is_the_mean() -> None:
    others = np.arange(100.0)
    runs = [Scores(np.full(4, 99.5), others), Scores(np.array([99.5, 0.0, 0.0, 0.0]), others)]
    assert operating_point(runs, 0.01).found == 0.625
