"""The artifact store's interface. Every write is durable when its method returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

Source = bytes | Path | IO[bytes]  # a file object is read from where it stands


class ArtifactMissing(Exception):
    """No bytes are stored under this name."""


class ArtifactCorrupt(ArtifactMissing):
    """The bytes stored under a digest do not have that digest any more."""


class ArtifactStore(Protocol):
    """Three kinds of things: artifacts named by their content, images named by their row, uploads waiting for use.

    Rows own their images: equal images of two rows are two files, so that one row's bytes can be removed without a
    count of references.
    """

    def put(self, source: Source) -> str:
        """Stores bytes (or a copy of a file) and returns their SHA-256 in hex; storing twice is storing once."""
        ...

    def fetch(self, digest: str) -> Path:
        """A local file whose SHA-256 was checked just now.

        Raises:
            ArtifactMissing: nothing is stored under the digest.
            ArtifactCorrupt: something is, and it is not what was stored.
        """
        ...

    def delete(self, digest: str) -> None:
        """Removes an artifact's bytes; removing what is not there is no error."""
        ...

    def put_images(self, dataset_id: str, images: Mapping[int, bytes]) -> None:
        """Stores the encoded images of rows, all or none."""
        ...

    def image_path(self, dataset_id: str, sample_id: int) -> Path:
        """Where a row's encoded image lies; the file may be absent."""
        ...

    def delete_images(self, dataset_id: str, sample_ids: Iterable[int]) -> None:
        """Removes the bytes of rows' images; removing what is not there is no error."""
        ...

    def stored_images(self, before: datetime) -> Iterator[tuple[str, int]]:
        """Data set and row of every stored image written before ``before``, in no order."""
        ...

    def put_upload(self, upload_id: str, source: Source) -> None:
        """Stores a file that a later request will use."""
        ...

    def put_uploads(self, uploads: Mapping[str, Source]) -> None:
        """Stores many uploads, all or none."""
        ...

    def upload_path(self, upload_id: str) -> Path:
        """Where an upload lies; the file may be absent."""
        ...

    def delete_upload(self, upload_id: str) -> None:
        """Removes an upload's bytes; removing what is not there is no error."""
        ...

    def delete_uploads(self, upload_ids: Iterable[str]) -> None:
        """Removes the bytes of many uploads."""
        ...

    def stored_uploads(self, before: datetime) -> Iterator[str]:
        """Ids of the uploads whose files were written before ``before``, in no order."""
        ...

    def work_folder(self, name: str) -> Path:
        """A local folder, made by who writes to it, for work that is to go on where a process died.

        Whoever ends the work removes it; :meth:`remove_unfinished` removes those that nobody has written to for long.
        """
        ...

    def remove_unfinished(self, before: datetime) -> int:
        """Removes what writers that died have left half-written before ``before``; returns the number of files."""
        ...
