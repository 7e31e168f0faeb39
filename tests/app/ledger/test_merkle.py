"""The tree against the recursive definitions of RFC 9162 §2.1, written down again here, and public vectors."""

from __future__ import annotations

import hashlib
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import merkle
from app.ledger.merkle import InvalidProof, OutOfRange

LARGEST = 70
DATA = tuple(b"leaf %d" % i for i in range(LARGEST))
LEAVES = tuple(hashlib.sha256(b"\x00" + data).digest() for data in DATA)


def grow(leaves: tuple[bytes, ...]) -> dict[tuple[int, int], bytes]:
    nodes: dict[tuple[int, int], bytes] = {}
    for size, leaf in enumerate(leaves):
        new = merkle.appended(size, leaf, lambda level, index: nodes[level, index])
        assert not new.keys() & nodes.keys()
        nodes.update(new)
    return nodes


NODES = grow(LEAVES)


def node(level: int, index: int) -> bytes:
    return NODES[level, index]


class Counted:
    def __init__(self, size: int) -> None:
        self.size = size
        self.reads = 0

    def __call__(self, level: int, index: int) -> bytes:
        assert (index + 1) << level <= self.size, "a node that the tree of this size does not have"
        self.reads += 1
        return NODES[level, index]


def k(n: int) -> int:
    power = 1
    while power * 2 < n:
        power *= 2
    return power


@cache
def mth(start: int, end: int) -> bytes:
    if start == end:
        return hashlib.sha256().digest()
    if end - start == 1:
        return LEAVES[start]
    middle = start + k(end - start)
    return hashlib.sha256(b"\x01" + mth(start, middle) + mth(middle, end)).digest()


def path(m: int, start: int, end: int) -> list[bytes]:
    if end - start == 1:
        return []
    split = k(end - start)
    if m < split:
        return [*path(m, start, start + split), mth(start + split, end)]
    return [*path(m - split, start + split, end), mth(start, start + split)]


def subproof(m: int, start: int, end: int, known: bool) -> list[bytes]:
    if m == end - start:
        return [] if known else [mth(start, end)]
    split = k(end - start)
    if m <= split:
        return [*subproof(m, start, start + split, known), mth(start + split, end)]
    return [*subproof(m - split, start + split, end, False), mth(start, start + split)]


def inclusion_shape(m: int, n: int) -> str:
    """On which side each sibling stands: all that a verifier learns from an index and a size."""
    if n == 1:
        return ""
    return inclusion_shape(m, k(n)) + "r" if m < k(n) else inclusion_shape(m - k(n), n - k(n)) + "l"


def consistency_shape(m: int, n: int, known: bool = True) -> str:
    if m == n:
        return "known" if known else "given"
    if m <= k(n):
        return consistency_shape(m, k(n), known) + "r"
    return consistency_shape(m - k(n), n - k(n), False) + "l"


def test_roots_of_all_sizes() -> None:
    for size in range(LARGEST + 1):
        counted = Counted(size)
        assert merkle.root(size, counted) == mth(0, size)
        assert counted.reads == size.bit_count() == len(merkle.peaks(size))


def test_stored_nodes_are_the_complete_subtrees_and_no_others() -> None:
    expected = {
        (level, index): mth(index << level, (index + 1) << level)
        for level in range(LARGEST.bit_length())
        for index in range(LARGEST >> level)
    }
    assert expected == NODES


def test_appending_reads_only_peaks() -> None:
    for size, leaf in enumerate(LEAVES):
        peaks = {coordinate: NODES[coordinate] for coordinate in merkle.peaks(size)}
        new = merkle.appended(size, leaf, lambda level, index, peaks=peaks: peaks[level, index])  # type: ignore[misc]
        assert new.items() <= NODES.items()


def test_every_inclusion_proof() -> None:
    for size in range(1, LARGEST + 1):
        for index in range(size):
            counted = Counted(size)
            proof = merkle.inclusion_proof(index, size, counted)
            assert proof == path(index, 0, size)
            assert counted.reads <= 2 * size.bit_length()
            merkle.verify_inclusion(index, size, LEAVES[index], proof, mth(0, size))


def test_every_consistency_proof() -> None:
    for second in range(LARGEST + 1):
        for first in range(second + 1):
            counted = Counted(second)
            proof = merkle.consistency_proof(first, second, counted)
            assert proof == (subproof(first, 0, second, True) if first else [])
            assert counted.reads <= 2 * second.bit_length()
            merkle.verify_consistency(first, second, proof, mth(0, first), mth(0, second))


def test_every_wrong_index_and_every_wrong_size_of_another_shape() -> None:
    for size in range(1, 34):
        for index in range(size):
            proof, expected = path(index, 0, size), mth(0, size)
            for wrong in range(-1, size + 2):
                if wrong != index:
                    with pytest.raises(InvalidProof):
                        merkle.verify_inclusion(wrong, size, LEAVES[index], proof, expected)
            # A root does not fix its size: where both sizes put the siblings on the same sides the proof is the same.
            for wrong in range(LARGEST):
                if wrong > index and inclusion_shape(index, wrong) == inclusion_shape(index, size):
                    merkle.verify_inclusion(index, wrong, LEAVES[index], proof, expected)
                else:
                    with pytest.raises(InvalidProof):
                        merkle.verify_inclusion(index, wrong, LEAVES[index], proof, expected)


def test_every_wrong_first_size_and_every_wrong_second_size_of_another_shape() -> None:
    for second in range(2, 34):
        for first in range(1, second):
            proof, roots = subproof(first, 0, second, True), (mth(0, first), mth(0, second))
            for wrong in range(-1, second + 2):
                if wrong != first:
                    with pytest.raises(InvalidProof):
                        merkle.verify_consistency(wrong, second, proof, *roots)
            for wrong in range(LARGEST):
                if wrong > first and consistency_shape(first, wrong) == consistency_shape(first, second):
                    merkle.verify_consistency(first, wrong, proof, *roots)
                else:
                    with pytest.raises(InvalidProof):
                        merkle.verify_consistency(first, wrong, proof, *roots)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


BITS = st.integers(0, 255)


@st.composite
def leaves_of_trees(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, LARGEST))
    return draw(st.integers(0, size - 1)), size


@st.composite
def pairs_of_trees(draw: st.DrawFn) -> tuple[int, int]:
    second = draw(st.integers(2, LARGEST))
    return draw(st.integers(1, second - 1)), second


@given(leaves_of_trees(), BITS, st.data())
def test_inclusion_refuses_any_flipped_bit(leaf: tuple[int, int], bit: int, data: st.DataObject) -> None:
    index, size = leaf
    proof, expected = path(index, 0, size), mth(0, size)
    with pytest.raises(InvalidProof):
        merkle.verify_inclusion(index, size, flipped(LEAVES[index], bit), proof, expected)
    with pytest.raises(InvalidProof):
        merkle.verify_inclusion(index, size, LEAVES[index], proof, flipped(expected, bit))
    with pytest.raises(InvalidProof):
        merkle.verify_inclusion(index, size, LEAVES[index], [*proof, expected], expected)
    with pytest.raises(InvalidProof):
        merkle.verify_inclusion(index ^ (1 << data.draw(st.integers(0, 62))), size, LEAVES[index], proof, expected)
    if proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        changed = [*proof[:place], flipped(proof[place], bit), *proof[place + 1 :]]
        with pytest.raises(InvalidProof):
            merkle.verify_inclusion(index, size, LEAVES[index], changed, expected)
        with pytest.raises(InvalidProof):
            merkle.verify_inclusion(index, size, LEAVES[index], proof[:place] + proof[place + 1 :], expected)
        shortened = [*proof[:place], proof[place][:-1], *proof[place + 1 :]]
        with pytest.raises(InvalidProof):
            merkle.verify_inclusion(index, size, LEAVES[index], shortened, expected)


@given(pairs_of_trees(), BITS, st.data())
def test_consistency_refuses_any_flipped_bit(sizes: tuple[int, int], bit: int, data: st.DataObject) -> None:
    first, second = sizes
    proof = subproof(first, 0, second, True)
    old, new = mth(0, first), mth(0, second)
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, proof, flipped(old, bit), new)
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, proof, old, flipped(new, bit))
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, proof, new, old)
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, [*proof, new], old, new)
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first ^ (1 << data.draw(st.integers(0, 62))), second, proof, old, new)
    place = data.draw(st.integers(0, len(proof) - 1))
    changed = [*proof[:place], flipped(proof[place], bit), *proof[place + 1 :]]
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, changed, old, new)
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, proof[:place] + proof[place + 1 :], old, new)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=40, unique=True), st.data())
def test_a_tree_whose_past_was_changed_has_no_consistency_proof(leaves: list[bytes], data: st.DataObject) -> None:
    second = len(leaves)
    first = data.draw(st.integers(1, second))
    place = data.draw(st.integers(0, first - 1))
    honest = grow(tuple(leaves))
    old = merkle.root(first, lambda *at: honest[at])
    leaves[place] = flipped(leaves[place], data.draw(BITS))
    rewritten = grow(tuple(leaves))
    proof = merkle.consistency_proof(first, second, lambda *at: rewritten[at])
    with pytest.raises(InvalidProof):
        merkle.verify_consistency(first, second, proof, old, merkle.root(second, lambda *at: rewritten[at]))


def test_a_byte_moved_from_one_hash_to_its_neighbour_is_refused() -> None:
    left, right = LEAVES[:2]
    with pytest.raises(InvalidProof, match="32 bytes"):
        merkle.verify_inclusion(0, 2, left + right[:1], [right[1:]], mth(0, 2))
    with pytest.raises(InvalidProof, match="32 bytes"):
        merkle.verify_consistency(1, 2, [right[1:]], left + right[:1], mth(0, 2))


def test_trees_without_leaves_and_equal_trees() -> None:
    some, other = LEAVES[0], LEAVES[1]
    merkle.verify_consistency(0, 0, [], merkle.EMPTY_ROOT, merkle.EMPTY_ROOT)
    merkle.verify_consistency(0, 5, [], merkle.EMPTY_ROOT, some)
    merkle.verify_consistency(3, 3, [], some, some)
    for first, second, proof, old, new in (
        (0, 5, [], some, some),
        (0, 0, [], merkle.EMPTY_ROOT, some),
        (0, 5, [some], merkle.EMPTY_ROOT, some),
        (3, 3, [some], some, some),
        (3, 3, [], some, other),
        (3, 2, [], some, some),
        (1, 2, [], some, some),
        (-1, 2, [], some, some),
    ):
        with pytest.raises(InvalidProof):
            merkle.verify_consistency(first, second, proof, old, new)
    for index, size in ((0, 0), (1, 1), (-1, 1), (0, -1)):
        with pytest.raises(InvalidProof):
            merkle.verify_inclusion(index, size, some, [], some)


def test_what_no_tree_has() -> None:
    for index, size in ((0, 0), (3, 3), (-1, 3)):
        with pytest.raises(OutOfRange):
            merkle.inclusion_proof(index, size, node)
    for first, second in ((3, 2), (-1, 2)):
        with pytest.raises(OutOfRange):
            merkle.consistency_proof(first, second, node)
    with pytest.raises(OutOfRange):
        merkle.root(-1, node)
    with pytest.raises(OutOfRange):
        merkle.appended(-1, LEAVES[0], node)
    with pytest.raises(ValueError, match="32 bytes"):
        merkle.appended(0, b"short", node)


# Leaves and roots that implementations of certificate transparency share as test vectors.
CT_DATA = tuple(
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
)
CT_ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def test_vectors_of_certificate_transparency() -> None:
    nodes = grow(tuple(map(merkle.leaf_hash, CT_DATA)))
    assert [merkle.root(size, lambda *at: nodes[at]).hex() for size in range(9)] == list(CT_ROOTS)
    assert [p.hex() for p in merkle.inclusion_proof(5, 8, lambda *at: nodes[at])] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [p.hex() for p in merkle.consistency_proof(6, 8, lambda *at: nodes[at])] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
