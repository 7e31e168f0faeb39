"""The archive that exists only while it is sent."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

from app.datasets.archives import ZipImages
from app.datasets.images import ImageLimits
from app.datasets.importers.archives import zip_of
from tests.app.datasets.importers.trees import write_images

NAMES = ["b/ü 1.jpg", "a.jpg", "b/2.jpg"]


def test_members_are_the_files_and_the_intake_accepts_them(tmp_path: Path) -> None:
    write_images(tmp_path, NAMES)
    sizes: list[int] = []
    data = b"".join(zip_of(tmp_path, NAMES, sizes.append))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == NAMES
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    source = ZipImages(io.BytesIO(data), ImageLimits(1 << 20, 1 << 20), max_members=10, max_unpacked_bytes=1 << 20)
    assert {name: source.read(name) for name in NAMES} == {name: (tmp_path / name).read_bytes() for name in NAMES}
    assert sizes == [(tmp_path / name).stat().st_size for name in NAMES]


def test_the_same_files_give_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    write_images(tmp_path, NAMES)
    first = b"".join(zip_of(tmp_path, NAMES))
    os.utime(tmp_path / "a.jpg", (0, 0))
    (tmp_path / "a.jpg").chmod(0o600)
    assert b"".join(zip_of(tmp_path, NAMES)) == first


def test_only_one_file_is_in_memory(tmp_path: Path) -> None:
    size, count = 1 << 20, 16
    names = [str(n) for n in range(count)]
    for name in names:
        (tmp_path / name).write_bytes(bytes(size))
    tracemalloc.start()
    total = sum(len(chunk) for chunk in zip_of(tmp_path, names))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > size * count
    # The file, what zipfile handed over, and the chunk: three or four copies of one file, far from sixteen files
    assert peak < 6 * size
