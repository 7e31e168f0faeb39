"""Files follow the transaction: what to do in the store once it committed, or was rolled back.

Postgres cannot take part in the file system's business, so the order is fixed: files are written and durable before
the commit, and files are removed after it. A rollback removes what was written for it, also the rollback of a
savepoint. When the answer to COMMIT is lost nobody knows which way it went; then nothing is removed, and the sweep for
files without a row (``app.datasets.service.remove_orphans``) decides later by looking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import structlog
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_log = structlog.get_logger(__name__)
_KEY = "app.artifacts.effects"


@dataclass
class _Effect:
    when: Literal["commit", "rollback"]
    action: Callable[[], None]
    transaction: SessionTransaction | None  # the innermost one that the action depends on


@dataclass
class _Effects:
    waiting: list[_Effect] = field(default_factory=list)
    committing: bool = False


def on_commit(session: Session, action: Callable[[], None]) -> None:
    """Runs ``action`` after the session's transaction committed; its failure is logged, not raised."""
    _add(session, "commit", action)


def on_rollback(session: Session, action: Callable[[], None]) -> None:
    """Runs ``action`` after the session's transaction, or the savepoint it is in, was rolled back for certain."""
    _add(session, "rollback", action)


def _add(session: Session, when: Literal["commit", "rollback"], action: Callable[[], None]) -> None:
    if not session.in_transaction():
        raise ValueError("effects belong to a transaction, and none has begun")
    transaction = session.get_nested_transaction() or session.get_transaction()
    _effects(session).waiting.append(_Effect(when, action, transaction))


def _effects(session: Session) -> _Effects:
    effects: _Effects = session.info.setdefault(_KEY, _Effects())
    return effects


@event.listens_for(Session, "before_commit")  # of every session: listening to each would cost more than it does
def _before_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        _effects(session).committing = True


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    if not session.in_nested_transaction():
        waiting, session.info[_KEY] = _effects(session).waiting, _Effects()
        _run(waiting, "commit")


@event.listens_for(Session, "after_rollback")
def _after_rollback(session: Session) -> None:
    """Of a savepoint, which is still the session's innermost here. The outermost transaction comes to its end below."""
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        effects = _effects(session)
        undone = [effect for effect in effects.waiting if effect.transaction is savepoint]
        effects.waiting = [effect for effect in effects.waiting if effect.transaction is not savepoint]
        _run(undone, "rollback")


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, transaction: SessionTransaction) -> None:
    """Reached by rollback and by closing without a commit alike; after a commit nothing waits any more."""
    effects = _effects(session)
    if transaction.parent is None:
        session.info[_KEY] = _Effects()
        if not effects.committing:
            _run(effects.waiting, "rollback")
    elif transaction.nested:  # a released savepoint is part of what is around it
        for effect in effects.waiting:
            if effect.transaction is transaction:
                effect.transaction = transaction.parent


def _run(effects: list[_Effect], when: Literal["commit", "rollback"]) -> None:
    for effect in effects:
        if effect.when == when:
            try:
                effect.action()
            except Exception as error:
                # The transaction is over and its outcome stands; the sweep removes what stayed behind.
                _log.error("files_left_behind", error=type(error).__name__)
