"""Lengths as functions of numbers."""

import math
from collections.abc import Callable

import pytest

from worker.editing.length import Estimate, Trial, best_trial, combined_rise, scale_reaching

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("loss", "level", "expected"),
    [
        (lambda s: s, 0.3, 0.3),
        (lambda s: s**3, 0.5, 0.5 ** (1 / 3)),
        (math.exp, 2.0, math.log(2)),
        (lambda s: 0.0 if s < 1.2 else 5.0, 1.0, 1.2),
        (lambda s: s if s < 0.7 else NAN, 1.0, 0.7),
        (lambda s: s if s < 0.7 else INF, 1.0, 0.7),
        (lambda s: -1 / (1 + s), -0.8, 0.25),
    ],
    ids=["line", "cubic", "exponential", "jump", "not a number", "infinite", "falling, negated"],
)
def test_bisection_finds_the_scale(loss: Callable[[float], float], level: float, expected: float) -> None:
    """To ``most / 2¹²``, and from below: the level is never passed."""
    found = scale_reaching(loss, level, most=2.0)
    assert expected - 2.0 / 2**12 <= found <= expected
    assert loss(found) <= level


def test_a_level_reached_from_the_start_needs_no_step() -> None:
    assert scale_reaching(lambda s: 1.0 + s, 1.0, most=2.0) == 0.0
    assert scale_reaching(lambda s: 3.0, 1.0, most=2.0) == 0.0
    assert scale_reaching(lambda s: NAN, 1.0, most=2.0) == 0.0


def test_a_level_never_reached_takes_the_whole_way() -> None:
    assert scale_reaching(lambda s: 0.1 * s, 1.0, most=1.5) == 1.5
    assert scale_reaching(lambda s: s, 1.0, most=0.0) == 0.0


def test_losses_are_measured_once_per_halving() -> None:
    seen: list[float] = []
    scale_reaching(lambda s: seen.append(s) or s, 0.3, most=2.0, iterations=5)  # type: ignore[func-returns-value]
    assert seen == [0.0, 2.0, 1.0, 0.5, 0.25, 0.375, 0.3125]


START = Trial(0.0, edited=1.0, held_out=0.5)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param([(0.5, 0.4, 0.5), (1.0, 0.1, 0.5)], 0.5, id="the first that reaches the level, not the lowest"),
        pytest.param([(0.5, 0.8, 0.5), (1.0, 0.6, 0.5)], 1.0, id="the lowest where none reaches it"),
        pytest.param([(0.5, 0.6, 0.5), (1.0, 0.9, 0.5)], 0.5, id="back where the loss rises again"),
        pytest.param([(0.5, 0.4, 0.9), (1.0, 0.1, 0.9)], 0.0, id="nowhere where the rest pays"),
        pytest.param([(0.25, 0.8, 0.5), (0.5, 0.4, 0.9)], 0.25, id="short of what the rest would pay for"),
        pytest.param([(0.5, 0.4, 0.6)], 0.5, id="the limit itself is within"),
        pytest.param([(0.5, 1.5, 0.5), (1.0, 2.0, 0.5)], 0.0, id="nowhere where it only rises"),
        pytest.param([(0.5, NAN, 0.5), (1.0, 0.7, NAN), (1.5, -INF, 0.1)], 0.0, id="nowhere that is not finite"),
        pytest.param([(0.5, NAN, NAN), (1.0, 0.7, 0.5)], 1.0, id="past what is not finite"),
        pytest.param([], 0.0, id="one trial"),
    ],
)
def test_where_to_stop_on_the_way_down(rest: list[tuple[float, float, float]], expected: float) -> None:
    trials = [START, *(Trial(*numbers) for numbers in rest)]
    assert best_trial(trials, level=0.5, held_out_limit=0.6).scale == expected


def test_the_start_is_within_any_limit_and_may_be_at_the_level() -> None:
    assert best_trial([START, Trial(1.0, 0.2, 0.4)], level=1.0, held_out_limit=0.0).scale == 0.0
    assert best_trial([START, Trial(1.0, 0.2, 0.4)], level=0.5, held_out_limit=0.3).scale == 0.0


def test_combined_rise_is_a_geometric_mean_by_inverse_variance() -> None:
    assert combined_rise([Estimate(0.7, 0.2)]) == pytest.approx(0.7)
    assert combined_rise([Estimate(1.0, 0.3), Estimate(4.0, 0.3)]) == pytest.approx(2.0)
    # Weights 1/0.1² and 1/0.2²: four to one.
    expected = math.exp((4 * math.log(2.0) + math.log(32.0)) / 5)
    assert combined_rise([Estimate(2.0, 0.1), Estimate(32.0, 0.2)]) == pytest.approx(expected)


@pytest.mark.parametrize("rise", [0.0, -0.5])
def test_one_estimate_to_stay_is_enough_to_stay(rise: float) -> None:
    assert combined_rise([Estimate(2.0, 0.1), Estimate(rise, 10.0)]) == 0.0
