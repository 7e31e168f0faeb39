"""Another key signs checkpoints from here on, without a moment in which none or only an unknown one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from app.ledger import service as ledger
from app.ledger.checkpoints import VerifierKey
from app.ledger.kinds import LedgerKind
from app.ledger.publishing import CheckpointPublisher


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    ``retired`` is one key; more after a rotation that was cut off, none where the private keys were lost. ``note`` is
    the checkpoint that covers the record of it, signed by ``key`` and by every retired one.
    """

    key: VerifierKey
    retired: tuple[VerifierKey, ...]
    note: str


def rotate(publisher: CheckpointPublisher, sessions: sessionmaker[Session], *, actor_ref: str) -> Rotation:
    """Add a key, record it, publish a checkpoint signed by old and new ones, retire the old ones.

    Cut off anywhere, it leaves one more key to sign with, and every checkpoint still has a signature by a key that was
    known before; done again, it retires both. Running processes sign with the keys that are there, without a restart.

    Raises:
        SigningKeyError: the keys cannot be used or changed.
        LedgerContradicted, LedgerDamaged, ArchiveError: no checkpoint can be published; no key is retired, and none
            was added if that was so before.
    """
    old = tuple(published.key for published in publisher.keys.published() if not published.retired)
    if old:
        _publish(publisher, sessions)  # before anything is changed, for it may not be possible
    new = publisher.keys.add_key()
    record(sessions, new, old, actor_ref=actor_ref)
    note = _publish(publisher, sessions)
    publisher.keys.retire(new)
    return Rotation(new, old, note)


def record(sessions: sessionmaker[Session], new: VerifierKey, old: tuple[VerifierKey, ...], *, actor_ref: str) -> None:
    """One entry for each key that ends, so that the history names every key that has signed it."""
    payloads: list[dict[str, Any]] = [{"key": str(new), "retired": str(retired)} for retired in old]
    with sessions.begin() as session:
        for payload in payloads or [{"key": str(new)}]:
            ledger.append(session, LedgerKind.SIGNING_KEY_ROTATED, actor_ref=actor_ref, payload=payload)


def _publish(publisher: CheckpointPublisher, sessions: sessionmaker[Session]) -> str:
    with sessions() as session:
        return publisher.publish(session)
