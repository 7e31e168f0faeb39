"""Areas and their intervals: against another library, a bootstrap, the literal formula, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from worker.evidence.auc import FEW_ROWS, FloatArray, Scores, area, auc, difference, hanley_mcneil_variance, placements


def scores(seed: int, m: int, n: int, shift: float = 0.7, digits: int = 1) -> Scores:
    """Normal scores with ties."""
    random = np.random.default_rng(seed)
    return Scores((random.normal(size=m) + shift).round(digits), random.normal(size=n).round(digits))


@pytest.mark.parametrize("seed", range(5))
def test_the_area_is_another_library_s(seed: int) -> None:
    some = scores(seed, 37, 53)
    truth = np.repeat([1, 0], [37, 53])
    assert auc(some) == pytest.approx(roc_auc_score(truth, np.concatenate([some.members, some.non_members])), abs=1e-12)


def literal_delong_variance(first: Scores, second: Scores | None = None) -> float:
    """By the definition: sample variances of the components, pair by pair."""

    def heaviside(x: float, y: float) -> float:
        return 0.5 if x == y else float(x > y)

    def table(some: Scores) -> FloatArray:
        return np.array([[heaviside(x, y) for y in some.non_members] for x in some.members])

    pairs = table(first) if second is None else table(first) - table(second)
    by_member, by_other = pairs.mean(axis=1), pairs.mean(axis=0)
    total = 0.0
    for part in (by_member, by_other):
        total += sum((value - pairs.mean()) ** 2 for value in part) / (len(part) - 1) / len(part)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_delong_is_the_definition_s(seed: int) -> None:
    some = scores(seed, 60, 55)
    assert area([some]).standard_error ** 2 == pytest.approx(literal_delong_variance(some), rel=1e-10)
    noise = np.random.default_rng(seed).normal(size=115)
    other = Scores(some.members + noise[:60], some.non_members + noise[60:])
    apart = difference([some], [other])
    assert apart.value == pytest.approx(auc(some) - auc(other), abs=1e-12)
    assert apart.standard_error**2 == pytest.approx(literal_delong_variance(some, other), rel=1e-10)
    low, high = apart.interval()
    assert (low + high) / 2 == pytest.approx(apart.value)
    assert high - low == pytest.approx(2 * 1.959964 * apart.standard_error, rel=1e-6)


def test_delong_agrees_with_a_bootstrap() -> None:
    """A standard deviation of 1,000 resamples is itself off by 2% (one deviation); ten per cent are five of those and
    something for the bootstrap's own bias of about ``1/m``."""
    some, random = scores(1, 80, 120), np.random.default_rng(2)
    areas = [auc(Scores(random.choice(some.members, 80), random.choice(some.non_members, 120))) for _ in range(1_000)]
    assert area([some]).standard_error == pytest.approx(np.std(areas), rel=0.1)


def test_the_same_rows_twice_differ_by_nothing() -> None:
    """Where the areas' covariance is forgotten, this has a standard error."""
    some = scores(3, 50, 50)
    apart = difference([some], [some])
    assert (apart.value, apart.standard_error) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("m", "n", "method"),
    [(3, 60, "hanley_mcneil"), (12, 60, "hanley_mcneil"), (60, 30, "hanley_mcneil"), (50, 60, "delong")],
)
def test_of_exchangeable_rows_the_interval_covers_one_half(m: int, n: int, method: str) -> None:
    """19 of 20 times. Among 1,500 draws a share of 0.95 has a standard deviation of 0.0056: three and a half to either
    side, and one per cent for what is asymptotic in the intervals."""
    random = np.random.default_rng([m, n])
    found = [area([Scores(random.normal(size=m), random.normal(size=n))]) for _ in range(1_500)]
    assert {one.method for one in found} == {method}
    covered = np.mean([one.low <= 0.5 <= one.high for one in found])
    assert abs(covered - 0.95) <= 3.5 * math.sqrt(0.95 * 0.05 / 1_500) + 0.01


@pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (3, 4)])
def test_at_one_half_hanley_and_mcneil_s_variance_is_exact(m: int, n: int) -> None:
    """Over all ways in which ranks can fall."""
    areas = [
        auc(Scores(np.array(members, float), np.array(sorted(set(range(m + n)) - set(members)), float)))
        for members in itertools.combinations(range(m + n), m)
    ]
    assert np.mean(areas) == pytest.approx(0.5)
    assert hanley_mcneil_variance(0.5, m, n) == pytest.approx(np.var(areas), rel=1e-12)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 60), (5, 60), (200, 200)])
def test_an_attack_that_is_always_right_is_not_sure_of_it(m: int, n: int) -> None:
    """DeLong's variance would be zero; more rows make surer."""
    right = area([Scores(np.ones(m), np.zeros(n))])
    wrong = area([Scores(np.zeros(m), np.ones(n))])
    assert (right.value, right.method) == (1.0, "hanley_mcneil")
    assert right.high == pytest.approx(1.0, abs=1e-12)
    assert 0 < right.low < 1
    assert wrong.low == pytest.approx(0.0, abs=1e-12)
    assert wrong.high == pytest.approx(1 - right.low, abs=1e-9)
    if m > 1:
        assert right.low > area([Scores(np.ones(m // 2), np.zeros(n // 2 + 1))]).low


@pytest.mark.parametrize(("m", "n"), [(1, 9), (10, 20), (60, 60)])
def test_the_value_lies_within_its_interval_and_within_zero_and_one(m: int, n: int) -> None:
    for seed, shift in itertools.product(range(10), (-3.0, 0.0, 3.0)):
        found = area([scores(seed, m, n, shift)])
        assert 0 <= found.low <= found.value <= found.high <= 1
        wider = area([scores(seed, m, n, shift)], confidence=0.99)
        assert wider.low <= found.low <= found.high <= wider.high


def test_several_models_have_the_mean_area_and_no_less_doubt() -> None:
    some, other = scores(4, 60, 70), scores(5, 60, 70)
    both = area([some, other])
    assert both.value == pytest.approx((auc(some) + auc(other)) / 2)
    assert both.standard_error == pytest.approx((area([some]).standard_error + area([other]).standard_error) / 2)
    assert area([some, some]) == area([some])


def test_placements_by_hand() -> None:
    by_member, by_other = placements(Scores(np.array([3.0, 1.0]), np.array([0.0, 1.0, 2.0, 4.0])))
    assert by_member.tolist() == [0.75, 0.375]
    assert by_other.tolist() == [1.0, 0.75, 0.5, 0.0]


def test_few_rows_are_those_whose_interval_says_little() -> None:
    """The number in the documentation."""
    half_width = 1.959964 * math.sqrt(hanley_mcneil_variance(0.5, FEW_ROWS - 1, 10**9))
    assert round(half_width, 2) == 0.08


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        auc(Scores(np.array([np.nan]), np.array([0.0])))
    with pytest.raises(ValueError, match="two rows"):
        difference([scores(0, 1, 5)], [scores(1, 1, 5)])
    with pytest.raises(ValueError, match="no model"):
        area([])
