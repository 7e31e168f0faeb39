"""The images of a plan as one zip archive that exists only while it is sent."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_UNIX_FILE = 0o100644 << 16


def zip_of(root: Path, names: Iterable[str], sent: Callable[[int], object] = int) -> Iterator[bytes]:
    """A zip archive of the files ``names`` below ``root``, member by member; no more than one is in memory.

    Members are stored, not deflated: images do not get smaller. The same files give the same bytes, whenever and
    wherever they were made, so that an archive sent twice is recognised as the same request.

    Args:
        sent: called with the size in bytes of each file that has been passed on.
    """
    buffer = _Outlet()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            member = zipfile.ZipInfo(name)
            member.external_attr = _UNIX_FILE
            data = (root / name).read_bytes()
            archive.writestr(member, data)
            yield buffer.take()
            sent(len(data))
    yield buffer.take()


class _Outlet(io.RawIOBase):
    """What ``zipfile`` writes to: not seekable, so that nothing that is gone needs to be changed."""

    def __init__(self) -> None:
        super().__init__()
        self._pending = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # typeshed has no public name for a buffer in 3.11
        self._pending += view
        return view.nbytes

    def take(self) -> bytes:
        pending = bytes(self._pending)
        self._pending.clear()
        return pending
