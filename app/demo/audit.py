"""The history as an auditor holds it to what was signed: an export and the keys, without the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.ledger.checkpoints import VerifierKey
from app.ledger.exports import lines_of
from app.ledger.findings import TamperingFound, Verified
from app.ledger.verification import verify


@dataclass(frozen=True)
class LedgerOutcome:
    """What verifying came to, of the history and of a copy that was tampered with.

    ``entries`` is the number verified; ``tamper_detected_at`` is the number of the one entry that verification named
    in the copy, None if it named none.
    """

    entries: int
    verified: bool
    tampered_at: int | None = None
    tamper_detected_at: int | None = None

    @property
    def proved(self) -> bool:
        """Whether the history is as signed, and what was done to the copy was found where it was done."""
        return self.verified and self.tampered_at is not None and self.tamper_detected_at == self.tampered_at


@dataclass(frozen=True)
class Tampering:
    """A lie told in a copy: the entry, and the version that it says it made instead of the true one."""

    seq: int
    true_version: int
    told_version: int


def verify_file(export: Path, keys: Sequence[VerifierKey]) -> Verified:
    """Verify an export.

    Raises:
        TamperingFound: it is not what was signed.
        UnreadableExport: it is no export.
    """
    with export.open("rb") as file:
        return verify(lines_of(file), keys)


def named_entry(found: TamperingFound) -> int | None:
    """The one entry that a finding accuses; None when it can only say a range, or nothing."""
    return found.first_seq if found.first_seq == found.last_seq else None


def tamper(export: Path, copy: Path) -> Tampering:
    """Copy an export, but let the middle one of the entries that made a version say that it made the next one.

    Raises:
        ValueError: no entry made a version.
    """
    lines = export.read_bytes().splitlines(keepends=True)
    versions = {
        place: version
        for place, line in enumerate(lines)
        if (version := (json.loads(line).get("entry") or {}).get("result_version")) is not None
    }
    if not versions:
        raise ValueError("no entry of the export made a version")
    place = list(versions)[len(versions) // 2]
    value = json.loads(lines[place])
    tampering = Tampering(value["entry"]["seq"], versions[place], versions[place] + 1)
    value["entry"]["result_version"] = tampering.told_version
    lines[place] = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    copy.write_bytes(b"".join(lines))
    return tampering
