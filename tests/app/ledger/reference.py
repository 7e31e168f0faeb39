"""The root of RFC 9162 §2.1.1 by its recursive definition, from the data of the leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def reference_root(leaves: Sequence[bytes]) -> bytes:
    """``MTH(D_n)``; O(n) hashes each time."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\x01" + reference_root(leaves[:half]) + reference_root(leaves[half:])).digest()
