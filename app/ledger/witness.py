"""A witness: sees every checkpoint that the log shows and holds the next one to it.

A log that was put back, cut, rewritten, or that shows different histories to different people, cannot prove that its
newest checkpoint extends the one the witness keeps (RFC 9162 §2.1.4; the roles are those of c2sp.org/tlog-witness).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.ledger.checkpoints import (
    Checkpoint,
    MalformedCheckpoint,
    UntrustedCheckpoint,
    VerifierKey,
    verify_checkpoint,
)
from app.ledger.durable_files import fsync_folder, write_durably
from app.ledger.exports import Refused, hashes
from app.ledger.merkle import InvalidProof, verify_consistency

MAX_NOTE_BYTES = 1 << 20
"""A larger file is no checkpoint."""


class CannotWitness(RuntimeError):
    """Nothing can be said this time: what the log answered, or what was kept, is no checkpoint."""


class Alarm(Exception):
    """The log does not extend what it signed before; ``evidence`` are the notes that show it, kept one first."""

    def __init__(self, message: str, *evidence: str) -> None:
        self.evidence = evidence
        super().__init__(message)


class Log(Protocol):
    """What a witness asks a log."""

    def checkpoint(self) -> str:
        """The newest signed note."""

    def consistency_proof(self, first: int, second: int) -> list[str]:
        """That the tree of ``second`` entries begins with that of ``first``: hashes in hex."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A checkpoint that extends the one kept before, if there was one."""

    checkpoint: Checkpoint
    before: Checkpoint | None


def look(log: Log, keys: Sequence[VerifierKey], state: Path) -> Sighting:
    """Fetch the newest checkpoint, hold it to the one kept in ``state``, and keep it instead.

    The first one is kept as it comes.

    Args:
        keys: verifier keys of the log, all with its name.
        state: file of the last signed note; replaced in one step, durable when this returns, untouched on an alarm.

    Raises:
        Alarm: no trusted key signed the checkpoint, it is smaller than the kept one, or does not extend it.
        CannotWitness: the log's answer or the kept file is no checkpoint, or the file cannot be read or replaced.
    """
    origin = keys[0].name
    kept = _kept(state)
    before = None
    if kept is not None:
        try:
            before = verify_checkpoint(kept, keys, origin=origin)
        except (MalformedCheckpoint, UntrustedCheckpoint) as error:
            raise CannotWitness(f"{state} is not a checkpoint to hold the log to: {error}.") from error
    note = log.checkpoint()
    try:
        checkpoint = verify_checkpoint(note, keys, origin=origin)
    except MalformedCheckpoint as error:
        raise CannotWitness(f"The log answered with something that is no checkpoint: {error}.") from error
    except UntrustedCheckpoint as error:
        raise Alarm(f"The newest checkpoint is not to be trusted: {error}.", note) from error
    if kept is not None and before is not None:
        _hold(log, before, checkpoint, kept, note)
    if note != kept:
        _keep(state, note)
    return Sighting(checkpoint, before)


def _hold(log: Log, before: Checkpoint, now: Checkpoint, kept: str, note: str) -> None:
    if now.size < before.size:
        raise Alarm(f"The log went back: it has signed {before.size} entries and now shows {now.size}.", kept, note)
    if now.size == before.size:
        if now.root != before.root:
            raise Alarm(f"The log has signed two different histories of {now.size} entries.", kept, note)
        return
    try:
        proof = hashes(log.consistency_proof(before.size, now.size))
        verify_consistency(before.size, now.size, proof, before.root, now.root)
    except (Refused, InvalidProof) as error:
        raise Alarm(
            f"The log cannot show that its {now.size} entries begin with the {before.size} it signed before: {error}.",
            kept,
            note,
        ) from error


def _kept(state: Path) -> str | None:
    try:
        with state.open("rb") as file:
            return file.read(MAX_NOTE_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CannotWitness(f"{state} is not a checkpoint to hold the log to: it is not text.") from error
    except OSError as error:
        raise CannotWitness(f"{state} cannot be read: {error.strerror}.") from error


def _keep(state: Path, note: str) -> None:
    unfinished = state.with_name(f".{state.name}.{secrets.token_hex(8)}")
    try:
        write_durably(unfinished, note, mode=0o644)
        unfinished.replace(state)
        fsync_folder(state.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise CannotWitness(f"{state} cannot be written: {error.strerror}.") from error
