"""Files follow the transaction: what to do in the store once it committed, or was rolled back.

Postgres cannot take part in the file system's business, so the order is fixed: files are written and durable before
the commit, and files are removed after it. A rollback removes what was written for it. When the answer to COMMIT is
lost nobody knows which way it went; then nothing is removed, and the sweep for files without a row
(``app.datasets.service.remove_orphans``) decides later by looking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_log = structlog.get_logger(__name__)
_KEY = "app.artifacts.effects"


@dataclass
class _Effects:
    commit: list[Callable[[], None]] = field(default_factory=list)
    rollback: list[Callable[[], None]] = field(default_factory=list)
    committing: bool = False


def on_commit(session: Session, action: Callable[[], None]) -> None:
    """Runs ``action`` after the session's outermost transaction committed; its failure is logged, not raised."""
    _effects(session).commit.append(action)


def on_rollback(session: Session, action: Callable[[], None]) -> None:
    """Runs ``action`` after the session's outermost transaction was rolled back for certain."""
    _effects(session).rollback.append(action)


def _effects(session: Session) -> _Effects:
    if _KEY not in session.info:
        session.info[_KEY] = _Effects()
        event.listen(session, "before_commit", _before_commit)
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_end)
    effects: _Effects = session.info[_KEY]
    return effects


def _before_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        _effects(session).committing = True


def _after_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        _settle(session, _effects(session).commit)


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    """Reached by rollback and by closing without a commit alike; after a commit nothing is left to settle."""
    if transaction.parent is None:
        effects = _effects(session)
        _settle(session, [] if effects.committing else effects.rollback)


def _settle(session: Session, actions: list[Callable[[], None]]) -> None:
    session.info[_KEY] = _Effects()
    for action in actions:
        try:
            action()
        except OSError as error:
            # The transaction is over and its outcome stands; the sweep removes what stayed behind.
            _log.error("files_left_behind", error=type(error).__name__, errno=error.errno)
