"""Signed checkpoints: what the service says its history is, told to everybody in the same words.

Every checkpoint is archived outside the database before anyone is given it. A new one is signed only if the stored
tree still begins with the one signed last; the signer never vouches for a history that contradicts it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from sqlalchemy import exists, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from app.ledger import service as ledger
from app.ledger.archive import ArchiveError, CheckpointArchive
from app.ledger.checkpoints import Checkpoint, parse_checkpoint, sign_checkpoint
from app.ledger.kinds import LedgerKind
from app.ledger.merkle import InvalidProof, verify_consistency
from app.ledger.reading import consistency, root_at, tree_size
from app.ledger.signing import KeyDirectory, SigningKeyError
from app.settings import Settings
from app.tables import LedgerEntry

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 1.0


class LedgerContradicted(RuntimeError):
    """The database is not a continuation of what was signed before."""


class CheckpointPublisher:
    """Signs and archives checkpoints; safe for many processes at once."""

    def __init__(self, keys: KeyDirectory, archive: CheckpointArchive) -> None:
        self.keys = keys
        self.archive = archive

    @classmethod
    def of(cls, settings: Settings) -> CheckpointPublisher:
        """On the directories of ``settings``; touches no file yet."""
        return cls(
            KeyDirectory(settings.signing_dir or settings.data_dir / "signing"),
            CheckpointArchive(settings.checkpoint_dir or settings.data_dir / "checkpoints"),
        )

    def begin(self, session: Session, origin: str | None) -> None:
        """Make sure that there is a key and that the ledger names the first one. Part of starting an API process."""
        self.keys.ensure(origin)
        created = LedgerEntry.kind == LedgerKind.SIGNING_KEY_CREATED.value
        if session.scalar(select(exists().where(created))):
            return
        ledger.lock(session)
        if not session.scalar(select(exists().where(created))):
            first = self.keys.published()[0].key
            ledger.append(session, LedgerKind.SIGNING_KEY_CREATED, actor_ref="operator", payload={"key": str(first)})

    def newest(self, session: Session, *, covering: int = 0) -> str:
        """The newest published checkpoint, or a new one if that does not cover entry number ``covering``.

        Raises: as :meth:`publish`.
        """
        note = self.archive.newest()
        if note is None or parse_checkpoint(note).checkpoint.size < covering:
            return self.publish(session)
        return note

    def publish(self, session: Session) -> str:
        """Sign and archive a checkpoint of all entries that ``session`` sees.

        Raises:
            LedgerContradicted: they are not a continuation of the newest archived checkpoint.
            LedgerDamaged: stored nodes are missing.
            SigningKeyError: there is no usable key.
            ArchiveError: the archive has another root for this size, or cannot be read.
        """
        newest = self.archive.newest()  # before the database is looked at: others publish meanwhile
        size = tree_size(session)
        checkpoint = Checkpoint(self.keys.origin, size, root_at(session, size))
        if newest is not None:
            self._require_continuation(session, parse_checkpoint(newest).checkpoint, checkpoint)
        note = sign_checkpoint(checkpoint, *self.keys.signing_keys())
        self.archive.publish(note)
        return note

    def _require_continuation(self, session: Session, before: Checkpoint, now: Checkpoint) -> None:
        if before.origin != now.origin:
            raise LedgerContradicted(f"The newest archived checkpoint is of {before.origin}, not of {now.origin}.")
        if before.size > now.size:
            raise LedgerContradicted(
                f"The database has {now.size} entries, and {before.size} were signed for: its end was cut off, or an "
                "older backup was restored."
            )
        try:
            proof = consistency(session, before.size, now.size)
            verify_consistency(before.size, now.size, proof, before.root, now.root)
        except InvalidProof as error:
            raise LedgerContradicted(
                f"The {now.size} entries of the database do not begin with the {before.size} that were signed for: "
                f"{error}. `modelmend ledger verify` an export."
            ) from error


class CheckpointClock:
    """A thread that publishes a checkpoint every so many entries, or seconds after an entry."""

    def __init__(self, publisher: CheckpointPublisher, sessions: sessionmaker[Session], settings: Settings) -> None:
        self._publisher = publisher
        self._sessions = sessions
        self._settings = settings
        self._begun = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Record the first key, while the caller waits if the database answers, then publish as time goes by."""
        self._begun = self._attempt(self._begin)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        grown_at: float | None = None  # when an entry was first seen that no checkpoint covers
        while not self._stopping.wait(_LOOK_SECONDS):
            if not self._begun:
                self._begun = self._attempt(self._begin)
            waiting = self._attempt(self._uncovered)
            if not waiting:
                grown_at = None
                continue
            grown_at = time.monotonic() if grown_at is None else grown_at
            due = time.monotonic() - grown_at >= self._settings.checkpoint_seconds
            if (due or waiting >= self._settings.checkpoint_entries) and self._attempt(self._publish):
                grown_at = None

    def _attempt(self, action: Callable[[], int]) -> int:
        """What ``action`` returns, or 0 if it failed; the thread outlives what it cannot do."""
        try:
            return action()
        except SQLAlchemyError as error:
            _log.warning("checkpoint_waits", error=type(error).__name__)
        except (LedgerContradicted, ledger.LedgerDamaged, SigningKeyError, ArchiveError) as error:
            _log.error("checkpoint_refused", reason=str(error))
        except OSError as error:
            _log.error("checkpoint_not_written", error=error.strerror)
        return 0

    def _begin(self) -> int:
        with self._sessions.begin() as session:
            self._publisher.begin(session, self._settings.ledger_origin)
        return 1

    def _uncovered(self) -> int:
        newest = self._publisher.archive.newest()
        covered = 0 if newest is None else parse_checkpoint(newest).checkpoint.size
        with self._sessions() as session:
            return max(tree_size(session) - covered, 0)

    def _publish(self) -> int:
        with self._sessions() as session:
            self._publisher.publish(session)
        return 1
