"""The artifact store in a local directory.

::

    objects/ab/cdef…         named by SHA-256
    images/DATASET/N/ROW     N = ROW // 4096, so that no directory grows without bound
    uploads/up-…
    unfinished/              files being written; the same file system, so that a rename finishes them
    work/NAME/               what long computations go on from when their process died
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path

from app.artifacts.store import ArtifactCorrupt, ArtifactMissing, Source

_CHUNK = 1 << 20
_IMAGES_PER_FOLDER = 4096
# Journals commit many waiting fsyncs together: 16 at once cost about as much as two one after the other.
_FSYNC_THREADS = 16
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class LocalArtifactStore:
    """Implements ``ArtifactStore`` on one file system. Safe for many processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects = root / "objects"
        self._images = root / "images"
        self._uploads = root / "uploads"
        self._unfinished = root / "unfinished"
        self._work = root / "work"
        for folder in (self._objects, self._images, self._uploads, self._unfinished, self._work):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, source: Source) -> str:
        unfinished = self._new_unfinished()
        try:
            digest = _write(unfinished, source)
            target = self._object(digest)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            unfinished.replace(target)
            _fsync_folder(target.parent)
            _fsync_folder(self._objects)
            return digest
        finally:
            unfinished.unlink(missing_ok=True)

    def fetch(self, digest: str) -> Path:
        path = self._object(digest)
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise ArtifactMissing(f"artifact {digest} is not stored") from None
        if found != digest:
            raise ArtifactCorrupt(f"artifact {digest} is damaged: its bytes have another digest")
        return path

    def delete(self, digest: str) -> None:
        _remove([self._object(digest)])

    def put_images(self, dataset_id: str, images: Mapping[int, bytes]) -> None:
        self._put_files({self.image_path(dataset_id, sample_id): data for sample_id, data in images.items()})

    def image_path(self, dataset_id: str, sample_id: int) -> Path:
        folder = str(int(sample_id) // _IMAGES_PER_FOLDER)
        return self._images / _component(dataset_id) / folder / str(int(sample_id))

    def delete_images(self, dataset_id: str, sample_ids: Iterable[int]) -> None:
        _remove([self.image_path(dataset_id, sample_id) for sample_id in sample_ids])

    def stored_images(self, before: datetime) -> Iterator[tuple[str, int]]:
        for path in _files_before(self._images.glob("*/*/*"), before):
            yield path.parent.parent.name, int(path.name)

    def put_upload(self, upload_id: str, source: Source) -> None:
        self.put_uploads({upload_id: source})

    def put_uploads(self, uploads: Mapping[str, Source]) -> None:
        self._put_files({self.upload_path(upload_id): source for upload_id, source in uploads.items()})

    def upload_path(self, upload_id: str) -> Path:
        return self._uploads / _component(upload_id)

    def delete_upload(self, upload_id: str) -> None:
        self.delete_uploads([upload_id])

    def delete_uploads(self, upload_ids: Iterable[str]) -> None:
        _remove([self.upload_path(upload_id) for upload_id in upload_ids])

    def stored_uploads(self, before: datetime) -> Iterator[str]:
        for path in _files_before(self._uploads.iterdir(), before):
            yield path.name

    def work_folder(self, name: str) -> Path:
        return self._work / _component(name)

    def remove_unfinished(self, before: datetime) -> int:
        abandoned = list(_files_before(self._unfinished.iterdir(), before))
        folders = [folder for folder in _files_before(self._work.iterdir(), before) if not _new_files(folder, before)]
        abandoned += [path for folder in folders for path in folder.iterdir()]
        _remove(abandoned)
        for folder in folders:
            with suppress(OSError):  # not empty: somebody has come to work there
                folder.rmdir()
        return len(abandoned)

    def _put_files(self, sources: Mapping[Path, Source]) -> None:
        folders = {path.parent for path in sources}
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(_FSYNC_THREADS) as pool:
                for _ in pool.map(self._put_file, sources, sources.values()):
                    pass
            above = {parent for folder in folders for parent in folder.parents if self.root in parent.parents}
            for changed in folders | above:
                _fsync_folder(changed)
        except BaseException:
            _remove(sources)
            raise

    def _put_file(self, target: Path, source: Source) -> None:
        unfinished = self._new_unfinished()
        try:
            _write(unfinished, source)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def _object(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise ValueError("an artifact's name is 64 lower-case hexadecimal digits")
        return self._objects / digest[:2] / digest[2:]

    def _new_unfinished(self) -> Path:
        return self._unfinished / secrets.token_hex(16)


def _component(name: str) -> str:
    """``name`` if it is one harmless path component; identifiers are checked at the door, this is the second lock."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a name of a stored thing")
    return name


def _write(path: Path, source: Source) -> str:
    """Writes and fsyncs a new file; returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    with path.open("xb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o600)
        for chunk in _chunks(source):
            digest.update(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _fsync_folder(folder: Path) -> None:
    """Makes names in a directory durable: fsync of a file says nothing about the entry that leads to it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        folders.add(path.parent)
    for folder in folders:
        _fsync_folder(folder)


def _new_files(folder: Path, before: datetime) -> bool:
    return len(list(_files_before(folder.iterdir(), before))) < len(list(folder.iterdir()))


def _files_before(paths: Iterable[Path], before: datetime) -> Iterator[Path]:
    for path in paths:
        try:
            written = path.stat().st_mtime
        except FileNotFoundError:  # removed while we looked
            continue
        if written < before.timestamp():
            yield path
