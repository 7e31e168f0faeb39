"""What verifying comes to: all is as it was signed, or the first entry where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.ledger.checkpoints import Checkpoint


class UnreadableExport(ValueError):
    """What was given is no export, receipt or checkpoint that can be judged: nothing is said about the history."""


class TamperingFound(Exception):
    """The history is not the one that was signed; the message is a sentence for people.

    ``first_seq`` and ``last_seq`` are the bad entry, twice, or the range in which it lies when only a range can be
    known; both are None when no entry is concerned.
    """

    def __init__(self, first_seq: int | None, last_seq: int | None, message: str) -> None:
        self.first_seq = first_seq
        self.last_seq = last_seq
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class OutsideCheckpoint:
    """A checkpoint, signed and verified, that was kept out of reach of whoever could rewrite the history."""

    checkpoint: Checkpoint
    source: str
    """Where it was kept, as messages call it."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found to be as it was signed."""

    document: Literal["history", "history of a model", "receipt"]
    origin: str
    size: int
    """Entries of the whole history at the newest checkpoint in the document."""
    root: bytes
    entries: int
    checkpoints: int
    """Checkpoints in the document, each signed by a trusted key and with the right root."""
    outside_checkpoints: int
    """Outside checkpoints that the document was held to: all of them by a whole history, else those of its size."""
    erased_payloads: int
    """Entries without payload. In a whole history each is named by a record of its erasure."""


def entries_text(first: int, last: int) -> str:
    """``entry 7`` or ``entries 7 to 9``."""
    return f"entry {first}" if first == last else f"entries {first} to {last}"
