"""The Merkle tree of RFC 6962 and RFC 9162, over stored nodes.

``node(level, index)`` is the root of the complete subtree over the ``2**level`` leaves from ``index * 2**level`` on;
level 0 holds the leaf hashes. A complete subtree never changes once its last leaf is there, so nodes are only ever
added: two per leaf on average. Every root and every proof of a tree of n leaves reads O(log n) of them, and which ones
depends on the sizes and indices alone, never on the hashes.

Hashes are 32 bytes of SHA-256. Leaves and inner nodes are hashed under different prefixes, so that neither can be
passed off as the other (RFC 9162 §2.1.1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves (RFC 9162 §2.1.1)."""

NodeLookup = Callable[[int, int], bytes]
Coordinate = tuple[int, int]
"""``(level, index)`` of a complete subtree."""


class OutOfRange(ValueError):
    """A size or index names no tree, leaf or pair of trees."""


class InvalidProof(ValueError):
    """A proof does not show what it claims; the message says at which step it fails."""


def leaf_hash(data: bytes) -> bytes:
    """``SHA-256(0x00 ‖ data)``."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """``SHA-256(0x01 ‖ left ‖ right)``."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def peaks(size: int) -> list[Coordinate]:
    """The complete subtrees, largest first, that together hold exactly the first ``size`` leaves: one per set bit.

    They are all that :func:`root` and :func:`appended` read of a tree of that size.

    Raises:
        OutOfRange: the size is negative.
    """
    if size < 0:
        raise OutOfRange(f"a tree has no {size} leaves")
    return _cover(0, size)


def appended(size: int, leaf: bytes, node: NodeLookup) -> dict[Coordinate, bytes]:
    """The nodes to store when a leaf joins a tree that has ``size`` leaves: its hash, and each subtree it completes.

    Args:
        size: leaves before this one, which makes it the index of the new leaf.
        leaf: its leaf hash, 32 bytes.
        node: stored nodes of the tree of ``size`` leaves.

    Returns:
        Between 1 and ``1 + log2(size + 1)`` new nodes, from the leaf upwards; none replaces a stored one.

    Raises:
        OutOfRange: the size is negative.
        ValueError: the leaf hash is not 32 bytes.
    """
    if size < 0:
        raise OutOfRange(f"a tree has no {size} leaves")
    if len(leaf) != HASH_BYTES:
        raise ValueError(f"a leaf hash has {HASH_BYTES} bytes, not {len(leaf)}")
    level, index, digest = 0, size, leaf
    stored = {(level, index): digest}
    while index & 1:
        digest = node_hash(node(level, index - 1), digest)
        level, index = level + 1, index >> 1
        stored[level, index] = digest
    return stored


def root(size: int, node: NodeLookup) -> bytes:
    """``MTH(D[0:size])`` of RFC 9162 §2.1.1: the root of the first ``size`` leaves. Reads :func:`peaks`, no more.

    Raises:
        OutOfRange: the size is negative.
    """
    return _fold(peaks(size), node) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, node: NodeLookup) -> list[bytes]:
    """``PATH(index, D[0:size])`` of RFC 9162 §2.1.3.1: the siblings from the leaf up to the root.

    Raises:
        OutOfRange: the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise OutOfRange(f"a tree of {size} leaves has no leaf {index}")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_range_root(middle, end, node))
            end = middle
        else:
            path.append(_range_root(start, middle, node))
            start = middle
    return path[::-1]


def consistency_proof(first: int, second: int, node: NodeLookup) -> list[bytes]:
    """``PROOF(first, D[0:second])`` of RFC 9162 §2.1.4.1: that the larger tree begins with the smaller one.

    Empty when the sizes are equal, and for ``first == 0``, which the RFC leaves out: every tree begins with no leaves.

    Raises:
        OutOfRange: not ``0 <= first <= second``.
    """
    if not 0 <= first <= second:
        raise OutOfRange(f"a tree of {first} leaves is not the beginning of one of {second}")
    if first in {0, second}:
        return []
    path: list[bytes] = []
    start, end = 0, second
    while first < end:
        middle = start + _split(end - start)
        if first <= middle:
            path.append(_range_root(middle, end, node))
            end = middle
        else:
            path.append(_range_root(start, middle, node))
            start = middle
    # The verifier holds the whole first tree already; anything else it must be given (SUBPROOF's flag b).
    if start > 0:
        path.append(_range_root(start, end, node))
    return path[::-1]


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], expected: bytes) -> None:
    """Check by RFC 9162 §2.1.3.2 that the tree with this size and root holds this leaf hash at this index.

    A root does not fix its size: take both from one signed checkpoint.

    Raises:
        InvalidProof: it does not, or the proof is malformed.
    """
    _require_hashes(leaf, expected, *proof)
    if not 0 <= index < size:
        raise InvalidProof(f"a tree of {size} leaves has no leaf {index}")
    fn, sn, digest = index, size - 1, leaf
    for sibling in proof:
        if sn == 0:
            raise InvalidProof("the inclusion proof is too long")
        if fn & 1 or fn == sn:
            digest = node_hash(sibling, digest)
            fn, sn = _skip_missing_siblings(fn, sn)
        else:
            digest = node_hash(digest, sibling)
        fn, sn = fn >> 1, sn >> 1
    if sn != 0:
        raise InvalidProof("the inclusion proof is too short")
    if digest != expected:
        raise InvalidProof(f"the inclusion proof of leaf {index} leads to another root")


def verify_consistency(first: int, second: int, proof: Sequence[bytes], first_root: bytes, second_root: bytes) -> None:
    """Check by RFC 9162 §2.1.4.2 that the second tree begins with all leaves of the first.

    A root does not fix its size: take both from one signed checkpoint, for each tree. Nothing can be said about
    ``second_root`` when ``first`` is 0.

    Raises:
        InvalidProof: it does not, or the proof is malformed.
    """
    _require_hashes(first_root, second_root, *proof)
    if not 0 <= first <= second:
        raise InvalidProof(f"a tree of {first} leaves is not the beginning of one of {second}")
    if first == 0 and first_root != EMPTY_ROOT:
        raise InvalidProof("the root of the empty first tree is not that of an empty tree")
    if first == second and first_root != second_root:
        raise InvalidProof(f"two trees of {first} leaves have different roots")
    if first in {0, second}:
        if proof:
            raise InvalidProof("the consistency proof is too long")
        return
    _walk_consistency(first, second, proof, first_root, second_root)


def _walk_consistency(first: int, second: int, proof: Sequence[bytes], first_root: bytes, second_root: bytes) -> None:
    if not proof:
        raise InvalidProof("the consistency proof is too short")
    # A first tree that is complete is a node of the second, and the verifier has its hash already.
    path = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    first_digest = second_digest = path[0]
    for sibling in path[1:]:
        if sn == 0:
            raise InvalidProof("the consistency proof is too long")
        if fn & 1 or fn == sn:
            first_digest = node_hash(sibling, first_digest)
            second_digest = node_hash(sibling, second_digest)
            fn, sn = _skip_missing_siblings(fn, sn)
        else:
            second_digest = node_hash(second_digest, sibling)
        fn, sn = fn >> 1, sn >> 1
    if sn != 0:
        raise InvalidProof("the consistency proof is too short")
    if first_digest != first_root:
        raise InvalidProof(f"the consistency proof leads to another root of the first {first} leaves")
    if second_digest != second_root:
        raise InvalidProof(f"the consistency proof leads to another root of the {second} leaves")


def _skip_missing_siblings(fn: int, sn: int) -> tuple[int, int]:
    # On the right edge a node without a sibling rises unhashed until it is somebody's right child.
    while fn and not fn & 1:
        fn, sn = fn >> 1, sn >> 1
    return fn, sn


def _split(length: int) -> int:
    """The largest power of two smaller than ``length``, for ``length`` above 1 (RFC 9162's k)."""
    return 1 << ((length - 1).bit_length() - 1)


def _cover(start: int, end: int) -> list[Coordinate]:
    # Start is a multiple of a power of two not below the length wherever this is used, so each piece is aligned.
    pieces: list[Coordinate] = []
    while start < end:
        level = (end - start).bit_length() - 1
        pieces.append((level, start >> level))
        start += 1 << level
    return pieces


def _range_root(start: int, end: int, node: NodeLookup) -> bytes:
    return _fold(_cover(start, end), node)


def _fold(pieces: Sequence[Coordinate], node: NodeLookup) -> bytes:
    # The last, smallest piece is the innermost right child.
    *rest, last = pieces
    digest = node(*last)
    for level, index in reversed(rest):
        digest = node_hash(node(level, index), digest)
    return digest


def _require_hashes(*hashes: bytes) -> None:
    for digest in hashes:
        if len(digest) != HASH_BYTES:
            raise InvalidProof(f"a hash has {HASH_BYTES} bytes, not {len(digest)}")
