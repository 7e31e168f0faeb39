"""The whole history, held to every checkpoint in it and outside it, in one pass over its export.

Kept in memory are the peaks of the tree (one hash per bit of its size), one byte per entry for its payload, and the
outside checkpoints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from app.ledger import exports
from app.ledger.checkpoints import VerifierKey
from app.ledger.exports import EntryRead, JsonObject, Reader, Refused
from app.ledger.findings import OutsideCheckpoint, TamperingFound, Verified, entries_text
from app.ledger.kinds import LedgerKind
from app.ledger.merkle import EMPTY_ROOT, node_hash

_PRESENT, _MISSING, _ERASED = 0, 1, 2


def verify_history(
    header: JsonObject,
    lines: Iterator[bytes],
    reader: Reader,
    keys: list[VerifierKey],
    outside: Iterable[OutsideCheckpoint],
) -> Verified:
    """Verify a whole export after its first line.

    Raises:
        Refused: the first line is not of the form.
        TamperingFound: as :func:`app.ledger.verification.verify` says.
    """
    history = _History(_size(header, keys), keys, outside, reader)
    try:
        for number, line in enumerate(lines, 2):
            history.take(line, number)
        return history.end()
    except TamperingFound as found:
        raise history.first_of(found) from None


class _History:
    def __init__(
        self, size: int, keys: list[VerifierKey], outside: Iterable[OutsideCheckpoint], reader: Reader
    ) -> None:
        self._size = size  # as the header has it: believed only if a signed checkpoint says so too
        self._keys = keys
        self._reader = reader
        self._outside = sorted(outside, key=lambda kept: kept.checkpoint.size, reverse=True)  # the next one last
        self._count = 0
        self._at = ""
        self._peaks: list[bytes] = []  # largest first
        self._payloads = bytearray()
        self._checkpoints = 0
        self._outside_agreed = 0
        self._signed = 0  # entries up to here are as some signed checkpoint has them
        self._kept = 0  # entries up to here are as an outside checkpoint has them
        self._ended = False  # by a checkpoint of what came so far
        self._suspect: tuple[TamperingFound, TamperingFound] | None = None

    def first_of(self, found: TamperingFound) -> TamperingFound:
        """What to report for ``found``: what came to notice before it, if anything."""
        return found if self._suspect is None else self._suspect[0]

    def take(self, line: bytes, number: int) -> None:
        try:
            value = self._reader.value(line)
            names = ("checkpoint",) if "checkpoint" in value else ("entry", "nodes")
            members = exports.required(value, "a line of an export", *names)
        except Refused as error:
            raise self._at_next(f"Line {number} {error}") from error
        if len(members) == 1:
            self._check(*members)
        else:
            self._add(*members)

    def end(self) -> Verified:
        self._compare_outside()
        claimed = max([self._size, *(kept.checkpoint.size for kept in self._outside)])
        if self._count < claimed:
            sources = [kept.source for kept in self._outside if kept.checkpoint.size == claimed]
            witness = sources[0] if sources else "the export's first line"
            raise TamperingFound(
                self._count + 1,
                claimed,
                f"The end is cut off: {witness} counts {claimed} entries, and {self._count} are here.",
            )
        if not self._ended:
            raise self._unsigned("The export does not end with a checkpoint of all its entries")
        first = self._payloads.find(_MISSING) + 1
        if first:
            last = first
            while last < self._count and self._payloads[last] == _MISSING:
                last += 1
            raise TamperingFound(
                first, last, f"No entry records an erasure of the missing payload of {entries_text(first, last)}."
            )
        return Verified(
            document="history",
            origin=self._keys[0].name,
            size=self._count,
            root=self._root(),
            entries=self._count,
            checkpoints=self._checkpoints,
            outside_checkpoints=self._outside_agreed,
            erased_payloads=self._count - self._payloads.count(_PRESENT),
        )

    def _add(self, value: object, nodes: object) -> None:
        if self._outside and self._outside[-1].checkpoint.size == self._count:
            self._compare_outside()
        seq = self._count + 1
        try:
            entry = self._reader.entry(value)
        except Refused as error:
            raise self._at_next(f"Entry {seq} {error}") from error
        if entry.seq > seq:
            raise TamperingFound(
                seq, entry.seq - 1, f"After entry {self._count} comes entry {entry.seq}: others are missing."
            )
        if entry.seq < seq:
            raise TamperingFound(
                max(entry.seq, 1), seq, f"After entry {self._count} comes entry {entry.seq}, out of order."
            )
        if seq > self._size:
            raise TamperingFound(
                seq, seq, f"Entry {seq} is one more than the {self._size} that the export says it has."
            )
        self._payloads.append(_MISSING if entry.payload is None else _PRESENT)
        if entry.kind == LedgerKind.LEDGER_PAYLOADS_ERASED.value:
            self._erase(entry)
        self._count = seq
        self._ended = False
        self._grow(entry.leaf_hash, nodes)
        if entry.at < self._at:
            raise TamperingFound(max(seq - 2, self._signed) + 1, seq, f"Entry {seq} is dated before entry {seq - 1}.")
        self._at = entry.at

    def _grow(self, leaf: bytes, nodes: object) -> None:
        seq, digest = self._count, leaf
        path = [digest.hex()]
        # As many subtrees end with this entry as its number has zeros at the end.
        for _ in range((seq & -seq).bit_length() - 1):
            digest = hashlib.sha256(b"\x01" + self._peaks.pop() + digest).digest()
            path.append(digest.hex())
        self._peaks.append(digest)
        if nodes == path or self._suspect is not None:
            return
        if type(nodes) is not list or len(nodes) != len(path):
            raise TamperingFound(
                seq, seq, f"Entry {seq} does not come with the {len(path)} stored hashes it completes."
            )
        level = next(level for level, (stored, right) in enumerate(zip(nodes, path, strict=True)) if stored != right)
        self._suspect = self._suspected(seq, level)

    def _suspected(self, seq: int, level: int) -> tuple[TamperingFound, TamperingFound]:
        """Findings when the entries below a wrong stored hash turn out not to be as signed, and when they do."""
        if level == 0:
            return (
                TamperingFound(seq, seq, f"Entry {seq} is not what its stored hash says it was."),
                TamperingFound(seq, seq, f"Entry {seq} is as it was signed, but its stored hash was changed."),
            )
        first = max(seq - (1 << level), self._signed) + 1
        below = entries_text(seq - (1 << level) + 1, seq)
        return (
            TamperingFound(first, seq, f"The stored hash over {below} is not theirs: one of them was changed."),
            TamperingFound(
                seq, seq, f"The stored hash over {below} was changed; the entries themselves are as they were signed."
            ),
        )

    def _check(self, note: object) -> None:
        try:
            checkpoint = exports.signed_checkpoint(note, self._keys)
        except Refused as error:
            raise self._unsigned(f"The checkpoint after entry {self._count} {error}") from error
        if checkpoint.size > self._count:
            raise TamperingFound(
                self._count + 1,
                checkpoint.size,
                f"A checkpoint counts {checkpoint.size} entries, and {self._count} come before it.",
            )
        if checkpoint.size < self._count:
            raise self._unsigned(f"After entry {self._count} stands an older checkpoint, of {checkpoint.size} entries")
        if checkpoint.root != self._root():
            raise self._unsigned(f"The checkpoint of {self._count} entries was signed over others than these")
        self._checkpoints += 1
        self._ended = True
        self._agreed()

    def _compare_outside(self) -> None:
        while self._outside and self._outside[-1].checkpoint.size == self._count:
            kept = self._outside[-1]
            if kept.checkpoint.root != self._root():
                more = "; the log's key has signed both" if self._ended else ""
                raise TamperingFound(
                    min(self._kept + 1, self._count) or None,
                    self._count or None,
                    f"{kept.source} holds another history of the first {self._count} entries{more}.",
                )
            self._outside.pop()
            self._outside_agreed += 1
            self._agreed()
            self._kept = self._count

    def _agreed(self) -> None:
        self._signed = self._count
        if self._suspect is not None:
            _, found = self._suspect
            self._suspect = None
            raise found

    def _erase(self, entry: EntryRead) -> None:
        """Payloads may be missing where such an entry, ``{"entries": [[first, last], ...]}``, says so, and must be."""
        for first, last in self._ranges(entry):
            kept = self._payloads.find(_PRESENT, first - 1, last) + 1
            if kept:
                raise TamperingFound(
                    kept, kept, f"Entry {kept} still has the payload that entry {entry.seq} says was erased."
                )
            self._payloads[first - 1 : last] = bytes([_ERASED]) * (last - first + 1)

    def _ranges(self, entry: EntryRead) -> list[list[int]]:
        """The ranges that a record of an erasure names: sorted, disjoint, of earlier entries."""
        ranges = None if entry.payload is None else entry.payload.get("entries")
        if type(ranges) is not list:
            raise TamperingFound(entry.seq, entry.seq, f"Entry {entry.seq} does not say what was erased.")
        before = 0
        for item in ranges:
            if type(item) is not list or list(map(type, item)) != [int, int] or not before < item[0] <= item[1]:
                raise TamperingFound(entry.seq, entry.seq, f"Entry {entry.seq} does not say in order what was erased.")
            before = item[1]
        if before >= entry.seq:
            raise TamperingFound(entry.seq, entry.seq, f"Entry {entry.seq} does not name earlier entries as erased.")
        return ranges

    def _root(self) -> bytes:
        if not self._peaks:
            return EMPTY_ROOT
        *rest, digest = self._peaks
        for peak in reversed(rest):
            digest = node_hash(peak, digest)
        return digest

    def _unsigned(self, what: str) -> TamperingFound:
        """A finding about the entries since the last checkpoint that agreed."""
        first = min(self._signed + 1, self._count)
        return TamperingFound(first or None, self._count or None, f"{what}.")

    def _at_next(self, what: str) -> TamperingFound:
        """A finding where the next entry is expected, or after the last one."""
        return (
            self._unsigned(what)
            if self._count == self._size
            else TamperingFound(self._count + 1, self._count + 1, f"{what}.")
        )


def _size(header: JsonObject, keys: list[VerifierKey]) -> int:
    origin = keys[0].name
    _, name, size, listed = exports.required(header, "the first line of an export", "format", "origin", "size", "keys")
    if name != origin:
        raise Refused(f"is of another log than {origin}, whose keys are trusted")
    if type(size) is not int or size < 0:
        raise Refused("has no size")
    if type(listed) is not list:
        raise Refused("has no list of keys")
    for key in listed:
        try:
            good = type(key) is str and VerifierKey.parse(key).name == origin
        except ValueError:
            good = False
        if not good:
            raise Refused(f"lists a key that is none of {origin}")
    return size
