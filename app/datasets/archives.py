"""The images that came with a manifest: members of one zip archive, or parts of the request.

An archive is never unpacked: members are read into memory one at a time, within the limit of one image. Its central
directory is judged before the first member is read, so that bombs and tricks with paths are refused as a whole.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, Any, Protocol

from app.datasets.images import ImageLimits, ImageRefused
from app.datasets.problems import INVALID_ARCHIVE
from app.datasets.report import ManifestErrorCode
from app.kit.problems import PAYLOAD_TOO_LARGE, Problem
from app.uploads.multipart import MultipartForm, Part

# Deflate reaches 1032:1; images that were worth compressing stay far below this.
_MAX_RATIO = 200
_RATIO_MATTERS_AT = 1 << 20
_MAX_DIRECTORY_BYTES_PER_MEMBER = 512
_MIN_DIRECTORY_LIMIT = 1 << 20
_STARTS = (b"PK\x03\x04", b"PK\x05\x06")  # with members, and without any
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_UNSAFE = re.compile(r"^/|^[A-Za-z]:|\\|[\x00-\x1f\x7f]|(^|/)\.\.(/|$)")


class ImageSource(Protocol):
    """Encoded images by name. Safe for many threads."""

    def __contains__(self, name: str) -> bool: ...

    def __len__(self) -> int: ...

    def read(self, name: str) -> bytes:
        """The encoded image; raises ImageRefused when it is over the limit or cannot be read."""
        ...


class PartImages:
    """Images that came as parts of the request, named by their file names."""

    def __init__(self, form: MultipartForm, parts: Iterable[Part], limits: ImageLimits) -> None:
        self._form = form
        self._limits = limits
        self._parts: dict[str, Part] = {}
        for number, part in enumerate(parts, 1):
            name = part.filename or ""
            if not name or _UNSAFE.search(name):
                raise _refusal("unsafe_path", number, "A file name is missing, absolute, or leads upwards.")
            if name in self._parts:
                raise _refusal("duplicate_entry", number, "Two files have the same name.")
            self._parts[name] = part

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, name: str) -> bytes:
        part = self._parts[name]
        if part.size > self._limits.max_bytes:
            raise ImageRefused(
                ManifestErrorCode.OVERSIZED_IMAGE, f"An image file may have at most {self._limits.max_bytes} bytes."
            )
        return self._form.read(part)


class _DirectoryTooLarge(Exception):
    pass


class _DirectoryGuard:
    """``zipfile`` reads a whole central directory into memory before anybody can count its members: refuse that."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self.limit: int | None = max(limit, _MIN_DIRECTORY_LIMIT)

    def read(self, size: int = -1) -> bytes:
        if self.limit is not None and size > self.limit:
            raise _DirectoryTooLarge
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()


class ZipImages:
    """Images in a zip archive, named by their paths in it.

    Raises:
        Problem: ``invalid_archive`` for what is no zip, damaged, or not plain; ``payload_too_large`` over a limit.
    """

    def __init__(self, file: IO[bytes], limits: ImageLimits, *, max_members: int, max_unpacked_bytes: int) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        size = file.seek(0, os.SEEK_END)
        guard = _DirectoryGuard(file, max_members * _MAX_DIRECTORY_BYTES_PER_MEMBER)
        try:
            self._zip = zipfile.ZipFile(guard)
        except _DirectoryTooLarge as error:
            raise Problem(PAYLOAD_TOO_LARGE, f"An archive may have at most {max_members} members.") from error
        except Exception as error:  # hostile directories make zipfile fail with nearly every built-in exception
            raise _refusal("not_a_zip", None, "The archive's directory cannot be read.") from error
        guard.limit = None
        members = self._zip.infolist()
        if len(members) > max_members:
            raise Problem(PAYLOAD_TOO_LARGE, f"An archive may have at most {max_members} members.")
        self._members: dict[str, zipfile.ZipInfo] = {}
        for number, member in enumerate(members, 1):
            _check_member(member, number)
            if member.filename in self._members:
                raise _refusal("duplicate_entry", number, "Two members have the same name.")
            if not member.is_dir():
                self._members[member.filename] = member
        unpacked = sum(member.file_size for member in members)
        if unpacked > max_unpacked_bytes:
            raise Problem(PAYLOAD_TOO_LARGE, f"Unpacked, an archive may have at most {max_unpacked_bytes} bytes.")
        if sum(member.compress_size for member in members) > size:
            raise _refusal(
                "overlapping_entries", None, "Members share bytes: their sizes add up to more than the file."
            )
        if unpacked > _RATIO_MATTERS_AT and unpacked > _MAX_RATIO * size:
            raise _refusal("compression_ratio", None, f"The archive unpacks to more than {_MAX_RATIO} times its size.")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __len__(self) -> int:
        return len(self._members)

    def read(self, name: str) -> bytes:
        member = self._members[name]
        if member.file_size > self._limits.max_bytes:
            raise ImageRefused(
                ManifestErrorCode.OVERSIZED_IMAGE, f"An image file may have at most {self._limits.max_bytes} bytes."
            )
        try:
            # A member never yields more than the directory says, whatever its stream holds.
            with self._lock, self._zip.open(member) as file:
                return file.read(self._limits.max_bytes + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
            raise ImageRefused(ManifestErrorCode.UNDECODABLE_IMAGE, "The member is damaged.") from error


def is_zip(head: bytes) -> bool:
    """Whether a file that starts with ``head`` is meant to be a zip archive (of members, or empty)."""
    return head.startswith(_STARTS)


def _check_member(member: zipfile.ZipInfo, number: int) -> None:
    if _UNSAFE.search(member.orig_filename) or not member.filename:
        raise _refusal(
            "unsafe_path", number, "A member's path is absolute, leads upwards, or holds control characters."
        )
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refusal("link", number, "A member is a link or a device.")
    if member.flag_bits & _ENCRYPTED:
        raise _refusal("encrypted", number, "A member is encrypted.")
    if member.compress_type not in _METHODS:
        raise _refusal("compression_method", number, "Members are stored or deflated; other methods are not read.")


def _refusal(code: str, number: int | None, detail: str) -> Problem:
    place: dict[str, Any] = {"entry": number, "code": code}
    return Problem(INVALID_ARCHIVE, detail, errors=[place])
