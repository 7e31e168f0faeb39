"""How far to go along a direction: never unmeasured.

Losses are means over rows as functions of the scale ``s`` of the step, ``s = 1`` being the solve's full length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Loss = Callable[[float], float]

_RETREATS, _HALVINGS = 4, 10


def scale_reaching(loss: Loss, level: float, *, most: float, iterations: int = 12) -> float:
    """The scale in ``[0, most]`` at which a rising ``loss`` reaches ``level``, from below.

    From full length by doubling or halving, then by that many divisions between the last two: relative precision, since
    directions may be many times too long. Every other division, the last one too, is where the chord meets the level:
    a convex loss is just below it there. 0 where the level is reached from the start, ``most`` where never. A loss that
    is not finite counts as past the level: the model has broken on the way.
    """

    def measured(scale: float) -> tuple[float, float, bool]:
        value = loss(scale)
        return scale, value, not math.isfinite(value) or value >= level

    low, high = measured(0.0), measured(min(1.0, most)) if most > 0 else (0.0, math.inf, True)
    if low[2]:
        return 0.0
    if high[2]:
        for _ in range(_HALVINGS):
            half = measured(high[0] / 2)
            if not half[2]:
                low = half
                break
            high = half
    else:
        while not high[2]:
            if high[0] >= most:
                return most
            low, high = high, measured(min(2 * high[0], most))
    for left in range(iterations, 0, -1):
        share = (level - low[1]) / (high[1] - low[1]) if left % 2 and math.isfinite(high[1]) else 0.5
        place = measured(low[0] + min(max(share, 0.05), 0.95) * (high[0] - low[0]))
        low, high = (low, place) if place[2] else (place, high)
    return low[0]


@dataclass(frozen=True)
class Place:
    """A scale, and the loss of the edited rows there."""

    scale: float
    edited: float


def falling_to(
    edited: Loss, held_out: Loss, scales: Sequence[float], *, level: float, held_out_limit: float, refinements: int = 1
) -> Place:
    """Where to stop on the way to a loss that should fall to ``level`` and no further.

    Walks up the scales until the level is reached or the loss rises again. If reached, bisection between the last two
    scales stops no further than asked. From there, back down the scales until the held-out loss is within its limit;
    it is measured nowhere else, as it is the dearer one. Where even the first scale is too far, halves of it are
    tried; at worst scale 0.

    Args:
        scales: ascending, the first 0.
        held_out_limit: the highest held-out loss that is acceptable.
    """
    visited = [Place(scales[0], edited(scales[0]))]
    for scale in scales[1:]:
        if visited[-1].edited <= level:
            break
        place = Place(scale, edited(scale))
        if not place.edited < visited[-1].edited:  # also where it is not a number
            break
        if place.edited <= level:
            place = _refined(edited, visited[-1], place, level, refinements)
        visited.append(place)
    while len(visited) > 1 and not held_out(visited[-1].scale) <= held_out_limit:
        visited.pop()
    if len(visited) > 1 or len(scales) == 1 or visited[0].edited <= level:
        return visited[-1]
    for halvings in range(1, _RETREATS + 1):
        place = Place(scales[1] / 2**halvings, edited(scales[1] / 2**halvings))
        if place.edited < visited[0].edited and held_out(place.scale) <= held_out_limit:
            return place
    return visited[0]


def _refined(edited: Loss, above: Place, below: Place, level: float, refinements: int) -> Place:
    """A place between two, still at the level or below it, as near to the first as bisection gets."""
    low = above.scale
    for _ in range(refinements):
        scale = (low + below.scale) / 2
        middle = Place(scale, edited(scale))
        if middle.edited <= level:
            below = middle
        else:
            low = scale
    return below
