"""Lengths as functions of numbers."""

import math
from collections.abc import Callable

import pytest

from worker.editing.length import falling_to, scale_reaching

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
    """From below: the level is never passed. Half of the twelve divisions are by halves, and the last is by a chord."""
    found = scale_reaching(loss, level, most=2.0)
    assert expected - 1.0 / 2**6 <= found <= expected
    assert loss(found) <= level


@pytest.mark.parametrize("loss", [lambda s: s**2, math.exp, lambda s: s**3])
def test_a_few_divisions_are_near_the_level_of_a_convex_loss(loss: Callable[[float], float]) -> None:
    """Within two per cent of it, where halves alone would leave up to twelve."""
    level = loss(1.3)
    found = scale_reaching(loss, level, most=4.0, iterations=4)
    assert 0.98 * level <= loss(found) <= level


def test_a_level_reached_from_the_start_needs_no_step() -> None:
    assert scale_reaching(lambda s: 1.0 + s, 1.0, most=2.0) == 0.0
    assert scale_reaching(lambda s: 3.0, 1.0, most=2.0) == 0.0
    assert scale_reaching(lambda s: NAN, 1.0, most=2.0) == 0.0


def test_a_level_never_reached_takes_the_whole_way() -> None:
    assert scale_reaching(lambda s: 0.1 * s, 1.0, most=1.5) == 1.5
    assert scale_reaching(lambda s: s, 1.0, most=0.0) == 0.0


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (1.4, [0.0, 1.0, 2.0, 1.5, 1.4]),  # up to the first past it, then between the two
        (0.3, [0.0, 1.0, 0.5, 0.25, 0.375, 0.3]),  # down to the first short of it
        (9.0, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_losses_are_measured_from_full_length(level: float, expected: list[float]) -> None:
    seen: list[float] = []
    scale_reaching(lambda s: seen.append(s) or s, level, most=3.0, iterations=2)  # type: ignore[func-returns-value]
    assert seen == pytest.approx(expected)


def test_a_direction_a_hundred_times_too_long_is_cut_as_finely() -> None:
    found = scale_reaching(lambda s: 100 * s, 0.777, most=4.0, iterations=4)
    assert 0.95 * 0.00777 <= found <= 0.00777


def visits(losses: dict[float, float]) -> tuple[list[float], Callable[[float], float]]:
    """A loss that notes where it is asked for."""
    seen: list[float] = []

    def loss(scale: float) -> float:
        seen.append(scale)
        return losses[scale]

    return seen, loss


FINE = {0.0: 0.5, 0.5: 0.5, 1.0: 0.5, 1.5: 0.5}


@pytest.mark.parametrize(
    ("edited", "held_out", "expected"),
    [
        pytest.param({0.0: 1.0, 0.5: 0.4, 1.0: 0.1}, FINE, 0.5, id="the first that reaches the level"),
        pytest.param({0.0: 1.0, 0.5: 0.8, 1.0: 0.6}, FINE, 1.0, id="the lowest where none reaches it"),
        pytest.param({0.0: 1.0, 0.5: 0.6, 1.0: 0.9}, FINE, 0.5, id="back where the loss rises again"),
        pytest.param({0.0: 1.0, 0.5: 0.8, 1.0: 0.4}, {0.0: 0.5, 0.5: 0.5, 1.0: 0.9}, 0.5, id="what the rest can pay"),
        pytest.param({0.0: 1.0, 0.5: 0.4, 1.0: 0.1}, {0.0: 0.5, 0.5: 0.9}, 0.0, id="nowhere where the rest pays"),
        pytest.param({0.0: 1.0, 0.5: 0.4, 1.0: 0.1}, {0.0: 0.5, 0.5: 0.6}, 0.5, id="the limit itself is within"),
        pytest.param({0.0: 1.0, 0.5: 0.4, 1.0: 0.1}, {0.0: 0.5, 0.5: NAN}, 0.0, id="nowhere that is not a number"),
        pytest.param({0.0: 1.0, 0.5: 1.5}, FINE, 0.0, id="nowhere where it only rises"),
        pytest.param({0.0: 1.0, 0.5: NAN}, FINE, 0.0, id="nowhere where it breaks at once"),
        pytest.param({0.0: 0.5}, FINE, 0.0, id="nowhere where the level is reached already"),
    ],
)
def test_where_to_stop_on_the_way_down(
    edited: dict[float, float], held_out: dict[float, float], expected: float
) -> None:
    place = falling_to(
        lambda s: edited.get(s, NAN),  # elsewhere the model is broken
        held_out.__getitem__,
        sorted(edited),
        level=0.5,
        held_out_limit=0.6,
        refinements=0,
    )
    assert place.scale == expected
    assert place.edited == edited[expected]


def test_the_held_out_loss_is_measured_at_the_end_alone() -> None:
    seen, held_out = visits(FINE)
    falling_to(lambda s: 1.0 - s / 2, held_out, (0.0, 0.5, 1.0, 1.5), level=0.0, held_out_limit=1.0, refinements=0)
    assert seen == [1.5]


def test_the_start_is_within_any_limit() -> None:
    place = falling_to(lambda s: 1.0 - s, lambda s: 5.0, (0.0, 0.5), level=0.0, held_out_limit=0.6)
    assert (place.scale, place.edited) == (0.0, 1.0)


def test_refinements_go_no_further_than_asked() -> None:
    """The level 0.3 is at 0.7, between 0.5 and 1: after k halvings within 0.5/2ᵏ, never short of it."""
    for refinements in (1, 2, 5):
        place = falling_to(
            lambda s: 1.0 - s, lambda s: 0.0, (0.0, 0.5, 1.0), level=0.3, held_out_limit=1.0, refinements=refinements
        )
        assert 0.7 <= place.scale <= 0.7 + 0.5 / 2**refinements
        assert place.edited <= 0.3


def test_halves_are_tried_where_the_first_scale_is_too_far() -> None:
    """For the edited rows, whose loss is least at 0.2, and for held-out rows, who can pay for 0.3."""
    place = falling_to(lambda s: abs(s - 0.2), lambda s: 0.0, (0.0, 1.0, 2.0), level=0.0, held_out_limit=1.0)
    assert place.scale == 0.25
    place = falling_to(lambda s: 1.0 - s, lambda s: s, (0.0, 1.0, 2.0), level=-5.0, held_out_limit=0.3)
    assert place.scale == 0.25


def test_nothing_is_taken_that_helps_nowhere() -> None:
    seen, edited = visits({0.0: 1.0, 1.0: 2.0, 0.5: 1.5, 0.25: 1.2, 0.125: 1.1, 0.0625: NAN})
    place = falling_to(edited, lambda s: 0.0, (0.0, 1.0, 2.0), level=0.0, held_out_limit=1.0)
    assert place.scale == 0.0
    assert seen == [0.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
