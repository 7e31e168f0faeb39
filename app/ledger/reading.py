"""Reading the tree as the database stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from app.ledger.merkle import EMPTY_ROOT, Coordinate, NodeLookup, consistency_proof, inclusion_proof, root
from app.ledger.service import LedgerDamaged
from app.tables import LedgerEntry

Result = TypeVar("Result")

_NODES = text("""
    SELECT level, position, hash FROM ledger_nodes
    JOIN unnest(CAST(:levels AS smallint[]), CAST(:positions AS bigint[])) AS wanted (level, position)
    USING (level, position)
""")


def tree_size(session: Session) -> int:
    """How many entries there are."""
    return session.scalar(select(func.max(LedgerEntry.seq))) or 0


def root_at(session: Session, size: int) -> bytes:
    """Root of the first ``size`` entries."""
    return _with_nodes(session, lambda node: root(size, node))


def inclusion_proofs(session: Session, seqs: Sequence[int], size: int) -> list[list[bytes]]:
    """For each entry, the proof that the tree of the first ``size`` entries holds it. One query for all.

    Raises:
        OutOfRange: not ``1 <= seq <= size`` for one of them.
    """
    return _with_nodes(session, lambda node: [inclusion_proof(seq - 1, size, node) for seq in seqs])


def consistency(session: Session, first: int, second: int) -> list[bytes]:
    """The proof that the tree of ``second`` entries begins with that of ``first``.

    Raises:
        OutOfRange: not ``0 <= first <= second``.
    """
    return _with_nodes(session, lambda node: consistency_proof(first, second, node))


def _with_nodes(session: Session, compute: Callable[[NodeLookup], Result]) -> Result:
    """``compute`` on stored nodes, fetched in one query: which it reads does not depend on what they hold."""
    wanted: dict[Coordinate, bytes] = {}

    def note(level: int, position: int) -> bytes:
        wanted[level, position] = EMPTY_ROOT
        return EMPTY_ROOT

    computed = compute(note)
    if not wanted:
        return computed
    rows = session.execute(
        _NODES, {"levels": [level for level, _ in wanted], "positions": [position for _, position in wanted]}
    )
    found = {(level, position): bytes(digest) for level, position, digest in rows}
    if missing := wanted.keys() - found.keys():
        raise LedgerDamaged(f"The ledger's node {min(missing)} is missing; `modelmend ledger verify` an export.")
    return compute(lambda level, position: found[level, position])
