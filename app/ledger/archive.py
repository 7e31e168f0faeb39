"""Published checkpoints as files outside the database, so that a database put back or rewritten contradicts them.

One file per size, named so that names sort by size; no folder holds more than a thousand names::

    000/000/001/000000001234.txt
    unfinished/                     files being written

Checkpoints are public: the files may be read by anybody, and copied to where the operator cannot reach them.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from app.ledger.checkpoints import MAX_SIGNATURES, Checkpoint, MalformedCheckpoint, parse_checkpoint
from app.ledger.durable_files import fsync_folder, locked, write_durably

MAX_SIZE = 10**12 - 1
"""Largest size that has a name here: a thousand entries a second for thirty years."""

_DIGITS = 12
_FOLDER_DIGITS = 3
_FOLDERS = 3
_FOLDER = re.compile(rf"[0-9]{{{_FOLDER_DIGITS}}}")
_FILE = re.compile(rf"[0-9]{{{_DIGITS}}}\.txt")
_ABANDONED_SECONDS = 3600


class ArchiveError(RuntimeError):
    """A checkpoint cannot be archived, or an archived one cannot be believed."""


class ConflictingCheckpoint(ArchiveError):
    """Another root, or another log, is archived for the same size: two histories have been shown."""


class DamagedCheckpoint(ArchiveError):
    """An archived file is not a checkpoint of the size it is named after."""


class CheckpointArchive:
    """Checkpoints of one log in a folder. Safe for many processes at once; reading needs no right to write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unfinished = path / "unfinished"

    def publish(self, note: str) -> None:
        """Archive a signed checkpoint; when this returns, it survives a crash.

        The same checkpoint with other signatures gets the union: while keys rotate, holders of the old key and of the
        new one can verify the same file, and cosignatures of witnesses are never lost. Where both have a signature by
        one key the newer counts; Ed25519 being deterministic, they differ only in a witness's time.

        Raises:
            MalformedCheckpoint: the note is not a checkpoint.
            ConflictingCheckpoint: another root or origin is archived for this size. Nothing is overwritten.
            DamagedCheckpoint: what is archived for this size cannot be read.
            ArchiveError: the size is above ``MAX_SIZE``, or the union has more than ``MAX_SIGNATURES`` signatures.
        """
        checkpoint = parse_checkpoint(note).checkpoint
        path = self._file(checkpoint.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._unfinished.mkdir(exist_ok=True)
        if path.exists() or not self._link(path, note):
            with locked(self.path / ".lock"):
                self._merge(path, checkpoint, note)
        # Also when another process has written it: that one may not have come this far yet.
        for folder in (path.parent, *path.parent.parents[:_FOLDERS]):
            fsync_folder(folder)

    def newest(self) -> str | None:
        """The checkpoint of the largest size; lists one folder per level."""
        return next(map(_read, _files(self.path, newest_first=True)), None)

    def from_size(self, size: int) -> Iterator[str]:
        """Checkpoints of ``size`` and above, in order of size."""
        return map(_read, _files(self.path, first=f"{max(size, 0):0{_DIGITS}d}")) if size <= MAX_SIZE else iter(())

    def at_least(self, size: int) -> str | None:
        """The smallest checkpoint that covers entry number ``size``, if one does yet."""
        return next(self.from_size(size), None)

    def _file(self, size: int) -> Path:
        if size > MAX_SIZE:
            raise ArchiveError(f"The archive has no name for a checkpoint of more than {MAX_SIZE:,} entries.")
        name = f"{size:0{_DIGITS}d}"
        folders = (name[i : i + _FOLDER_DIGITS] for i in range(0, _FOLDERS * _FOLDER_DIGITS, _FOLDER_DIGITS))
        return self.path.joinpath(*folders, f"{name}.txt")

    def _link(self, path: Path, note: str) -> bool:
        """Put a note in its place unless one is there already."""
        unfinished = self._write(note)
        try:
            path.hardlink_to(unfinished)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink()
        return True

    def _merge(self, path: Path, checkpoint: Checkpoint, note: str) -> None:
        """Add the signatures of ``note`` to those of an archived one. The caller holds the lock."""
        archived = _read(path)
        if (there := parse_checkpoint(archived).checkpoint) != checkpoint:
            raise ConflictingCheckpoint(
                f"{path} has the root {there.root.hex()} of {there.origin}, and now {checkpoint.root.hex()} of "
                f"{checkpoint.origin} was to be published for the same {checkpoint.size:,} entries: one history is "
                "not the other's beginning. Keep both the file and the database, and find out which was changed."
            )
        signatures = _signature_lines(archived) | _signature_lines(note)
        if len(signatures) > MAX_SIGNATURES:
            raise ArchiveError(f"{path} would have more than {MAX_SIGNATURES} signatures.")
        union = f"{checkpoint.text}\n{''.join(signatures.values())}"
        if union != archived:
            self._write(union).replace(path)

    def _write(self, note: str) -> Path:
        self._remove_abandoned()
        unfinished = self._unfinished / secrets.token_hex(16)
        write_durably(unfinished, note, mode=0o644)
        return unfinished

    def _remove_abandoned(self) -> None:
        before = time.time() - _ABANDONED_SECONDS
        for left in self._unfinished.iterdir():
            try:
                if left.stat().st_mtime < before:
                    left.unlink()
            except FileNotFoundError:  # finished, or removed by another process
                continue


def _files(root: Path, *, first: str = "", newest_first: bool = False) -> Iterator[Path]:
    """Archived files from the size with the digits ``first`` on; a folder is listed only when it is come to."""

    def below(folder: Path, digits: str) -> Iterator[Path]:
        if len(digits) == _FOLDERS * _FOLDER_DIGITS:
            yield from (folder / name for name in _names(folder, _FILE, newest_first) if name[:_DIGITS] >= first)
            return
        for name in _names(folder, _FOLDER, newest_first):
            if digits + name >= first[: len(digits) + _FOLDER_DIGITS]:
                yield from below(folder / name, digits + name)

    return below(root, "")


def _names(folder: Path, form: re.Pattern[str], newest_first: bool) -> list[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - up to a thousand names, no paths wanted
    except FileNotFoundError:  # nothing was ever published
        return []
    return sorted(filter(form.fullmatch, names), reverse=newest_first)


def _read(path: Path) -> str:
    try:
        note = path.read_bytes().decode()
        size = parse_checkpoint(note).checkpoint.size
    except (UnicodeDecodeError, MalformedCheckpoint) as error:
        raise DamagedCheckpoint(f"{path} is not a checkpoint: {error}. Restore it from a copy.") from error
    if size != int(path.stem):
        raise DamagedCheckpoint(f"{path} holds a checkpoint of {size:,} entries. Restore it from a copy.")
    return note


def _signature_lines(note: str) -> dict[tuple[str, bytes], str]:
    """Lines with their newlines by name and id of their key, in their order."""
    lines = note.partition("\n\n")[2].splitlines(keepends=True)
    signatures = parse_checkpoint(note).signatures
    return {(signature.name, signature.key_id): line for signature, line in zip(signatures, lines, strict=True)}
