"""Who is what in an attack with reference models: which test rows are the population, and who is in whose data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def population_split(rows: int, seed: int) -> tuple[Rows, Rows]:
    """Positions of test rows as the population, and as non-members: disjoint halves, drawn by the seed, in order.

    The odd row is a non-member. The population only has to rank ratios; non-members decide how sure an area is.
    """
    order = np.random.default_rng([seed, 0]).permutation(rows)
    return np.sort(order[: rows // 2]), np.sort(order[rows // 2 :])


def inclusion(references: int, candidates: int, seed: int) -> Mask:
    """Which reference model is trained on which candidate row, ``[K, candidates]``.

    One reference alone is trained on none of them (offline). Two or more come in pairs, one trained on a random half
    and the other on the rest, so that every candidate is in exactly half of them (online); an odd last one has a
    random half.
    """
    chosen = np.zeros((references, candidates), dtype=bool)
    if references < 2:
        return chosen
    random = np.random.default_rng([seed, 1])
    for first in range(0, references, 2):
        half = random.permutation(candidates)[: candidates // 2]
        chosen[first, half] = True
        if first + 1 < references:
            chosen[first + 1] = ~chosen[first]
    return chosen


def reference_seeds(references: int, seed: int) -> list[int]:
    """Training seeds of the reference models: their own, so that none starts from the version's own weights."""
    return [int(s) for s in np.random.default_rng([seed, 2]).integers(0, 2**31, references)]
