"""Multipart bodies (RFC 7578) of any number and size of parts, in constant memory and with one open file.

A data set may come as a hundred thousand small files; a temporary file and a buffer for each would exhaust the
process. All parts go, one after the other, into one nameless temporary file, and each is hashed while it passes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from app.access.dependencies import Creator
from app.kit.context import ServicesDep
from app.kit.idempotency import IdempotencyKeyDep
from app.kit.problems import INVALID_REQUEST, MALFORMED_BODY, PAYLOAD_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS = 100_000
_WRITE_AT = 1 << 20


@dataclass(frozen=True)
class Part:
    """One part of a body: where its bytes lie in the spool file, and their SHA-256 in hex."""

    name: str
    filename: str | None
    offset: int
    size: int
    sha256: str


class MultipartForm:
    """The parts of a body, in order. Reading is safe from many threads."""

    def __init__(self, spool: IO[bytes], parts: list[Part]) -> None:
        self._spool = spool
        self.parts = parts

    def named(self, name: str) -> list[Part]:
        return [part for part in self.parts if part.name == name]

    def only(self, *names: str) -> None:
        """Raises ``invalid_request`` when there are parts of other names."""
        if any(part.name not in names for part in self.parts):
            raise Problem(INVALID_REQUEST, f"Send parts of these names only: {', '.join(names)}.")

    def one(self, name: str) -> Part:
        """The one part of this name; raises ``invalid_request`` when there are none or several."""
        found = self.named(name)
        if len(found) != 1:
            raise Problem(
                INVALID_REQUEST,
                f"Send exactly one part named `{name}`.",
                errors=[{"pointer": f"/{name}", "code": "missing" if not found else "repeated"}],
            )
        return found[0]

    def read(self, part: Part) -> bytes:
        return os.pread(self._spool.fileno(), part.size, part.offset)

    def open(self, part: Part) -> io.BufferedReader:
        """A seekable file over the part's bytes, with a position of its own."""
        return io.BufferedReader(_Slice(self._spool.fileno(), part.offset, part.size))

    def close(self) -> None:
        self._spool.close()

    def digest(self) -> dict[str, Any]:
        """What makes two bodies the same request: names and contents, not boundaries and headers."""
        return {"parts": [[part.name, part.filename, part.sha256] for part in self.parts]}


class _Slice(io.RawIOBase):
    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._start = start
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._position))
        count = os.preadv(self._descriptor, [memoryview(buffer)[:wanted]], self._start + self._position)
        self._position += count
        return count


class _Reader:
    """Receives the parser's callbacks; keeps what is to be written until ``flush``."""

    def __init__(self, spool: IO[bytes], max_parts: int) -> None:
        self.spool = spool
        self.parts: list[Part] = []
        self.complete = False
        self.pending = bytearray()
        self._max_parts = max_parts
        self._end = 0
        self._header_name = b""
        self._header_value = b""
        self._start_part()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._start_part,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def flush(self) -> None:
        self.spool.write(self.pending)
        self.pending = bytearray()

    def _start_part(self) -> None:
        self._disposition = b""
        self._name = ""
        self._filename: str | None = None
        self._offset = self._end
        self._sha256 = hashlib.sha256()

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        filename = options.get(b"filename")
        try:
            self._name = options[b"name"].decode()
            self._filename = None if filename is None else filename.decode()
        except (KeyError, UnicodeDecodeError) as error:
            raise Problem(MALFORMED_BODY, "Every part needs a name; names are UTF-8.") from error

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        chunk = memoryview(data)[start:end]
        self._sha256.update(chunk)
        self._end += end - start
        self.pending += chunk

    def _on_part_end(self) -> None:
        if len(self.parts) == self._max_parts:
            raise Problem(PAYLOAD_TOO_LARGE, f"A body may have at most {self._max_parts} parts; send a zip archive.")
        size = self._end - self._offset
        self.parts.append(Part(self._name, self._filename, self._offset, size, self._sha256.hexdigest()))

    def _on_end(self) -> None:
        self.complete = True


async def read_multipart(
    content_type: str, chunks: AsyncIterator[bytes], folder: Path, max_parts: int = MAX_PARTS
) -> MultipartForm:
    """Reads a body to its end. The form's bytes live in an unlinked file in ``folder`` until the form is closed.

    Raises:
        Problem: ``unsupported_media_type``, ``malformed_body`` or ``payload_too_large``.
    """
    media_type, options = parse_options_header(content_type)
    if media_type != b"multipart/form-data" or not options.get(b"boundary"):
        raise Problem(UNSUPPORTED_MEDIA_TYPE, "Send multipart/form-data.")
    spool = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (handed to the form, or closed below)
    try:
        reader = _Reader(spool, max_parts)
        parser = MultipartParser(options[b"boundary"], reader.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            if len(reader.pending) >= _WRITE_AT:
                await run_in_threadpool(reader.flush)
        await run_in_threadpool(reader.flush)
        await run_in_threadpool(spool.flush)
    except FormParserError as error:
        spool.close()
        raise Problem(MALFORMED_BODY, "The body is not multipart/form-data.") from error
    except BaseException:
        spool.close()
        raise
    if not reader.complete:
        spool.close()
        raise Problem(MALFORMED_BODY, "The multipart body ends before its last boundary.")
    return MultipartForm(spool, reader.parts)


async def _multipart_of(
    request: Request, services: ServicesDep, _: Creator, key: IdempotencyKeyDep
) -> AsyncIterator[MultipartForm]:
    """The caller's right and the key are checked first: nobody should send gigabytes to be told no."""
    key.required()
    form = await read_multipart(request.headers.get("content-type", ""), request.stream(), services.settings.data_dir)
    try:
        yield form
    finally:
        form.close()


MultipartDep = Annotated[MultipartForm, Depends(_multipart_of)]


def multipart_body(schema: dict[str, Any]) -> dict[str, Any]:
    """For a route's ``openapi_extra``: the body is a form of this JSON schema."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
