"""Many numbers of entries as few inclusive ranges."""

from __future__ import annotations

from collections.abc import Iterable


def as_ranges(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """The same numbers as sorted, disjoint ``(first, last)``, both included."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges
