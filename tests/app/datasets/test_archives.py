from __future__ import annotations

import io
import stat
import struct
import zipfile
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.datasets.archives import ZipImages, is_zip
from app.datasets.images import ImageLimits, ImageRefused
from app.kit.problems import Problem

LIMITS = ImageLimits(max_bytes=100_000, max_pixels=1_000_000)


def packed(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def opened(data: bytes, *, max_members: int = 100, max_unpacked_bytes: int = 10 << 20) -> ZipImages:
    return ZipImages(io.BytesIO(data), LIMITS, max_members=max_members, max_unpacked_bytes=max_unpacked_bytes)


def refusal(data: bytes, **limits: int) -> tuple[str, str | None]:
    with pytest.raises(Problem) as caught:
        opened(data, **limits)
    found = caught.value.errors
    return caught.value.type.code, found[0]["code"] if found else None


def replaced(data: bytes, before: bytes, after: bytes) -> bytes:
    assert before in data
    assert len(before) == len(after)
    return data.replace(before, after)


def test_members_are_read_by_name() -> None:
    images = opened(packed(("a.png", b"one"), ("folder/", b""), ("folder/b.png", b"two")))
    assert images.read("folder/b.png") == b"two"
    assert "a.png" in images
    assert "folder/" not in images
    assert "b.png" not in images
    assert len(images) == 2


@pytest.mark.parametrize(
    "name",
    ["../a.png", "a/../../b.png", "/etc/passwd", "C:/a.png", "a\\b.png", "..\\a.png", "a/..", "a\x01.png", "a\nb.png"],
)
def test_paths_that_lead_elsewhere_are_refused(name: str) -> None:
    data = packed(("x" * len(name), b"image"))
    assert refusal(replaced(data, b"x" * len(name), name.encode())) == ("invalid_archive", "unsafe_path")


def test_a_name_cut_short_by_nul_is_refused() -> None:
    data = packed(("aXb.png", b"image"))
    assert refusal(replaced(data, b"aXb.png", b"a\0b.png")) == ("invalid_archive", "unsafe_path")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(kind: int) -> None:
    member = zipfile.ZipInfo("a.png")
    member.external_attr = (kind | 0o777) << 16
    assert refusal(packed((member, b"/etc/passwd"))) == ("invalid_archive", "link")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_name_twice_is_refused() -> None:
    assert refusal(packed(("a.png", b"one"), ("a.png", b"two"))) == ("invalid_archive", "duplicate_entry")


def test_encrypted_members_are_refused() -> None:
    data = bytearray(packed(("a.png", b"image")))
    flags = data.index(b"PK\x01\x02") + 8
    data[flags] |= 1
    assert refusal(bytes(data)) == ("invalid_archive", "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(method: int) -> None:
    assert refusal(packed(("a.png", b"image"), method=method)) == ("invalid_archive", "compression_method")


def test_a_bomb_is_refused_by_what_it_unpacks_to() -> None:
    bomb = packed(*[(f"{number}.png", bytes(2 << 20)) for number in range(6)])
    assert len(bomb) < 20_000
    assert refusal(bomb) == ("payload_too_large", None)


def test_a_bomb_below_the_size_limit_is_refused_by_its_ratio() -> None:
    assert refusal(packed(("a.png", bytes(4 << 20)))) == ("invalid_archive", "compression_ratio")


def test_members_that_share_bytes_are_refused() -> None:
    """The quoted-overlap bomb: many directory entries for one member."""
    data = packed(("a.png", bytes(range(256)) * 4), method=zipfile.ZIP_STORED)
    start = data.index(b"PK\x01\x02")
    end = data.index(b"PK\x05\x06")
    entry = data[start:end]
    entries = b"".join(entry.replace(b"a.png", f"{number}.png".encode()) for number in range(10))
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 10, 10, len(entries), start, 0)
    assert refusal(data[:start] + entries + tail) == ("invalid_archive", "overlapping_entries")


def test_too_many_members_are_refused() -> None:
    members = [(f"{number}.png", b"image") for number in range(5)]
    assert len(opened(packed(*members), max_members=5)) == 5
    assert refusal(packed(*members), max_members=4) == ("payload_too_large", None)


def test_a_directory_too_long_to_read_is_not_read() -> None:
    """Its size is stated in the end record, or in the zip64 record, which overrides that silently."""
    padding = bytes(3 << 20)
    data = padding + packed(("a.png", b"image"))
    end = data.index(b"PK\x05\x06")
    stated = data[: end + 12] + struct.pack("<L", 2 << 20) + data[end + 16 :]
    assert refusal(stated) == ("payload_too_large", None)
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, 2 << 20, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    assert refusal(data[:end] + record + locator + data[end:]) == ("payload_too_large", None)


def test_a_member_yields_no_more_than_its_directory_entry_says() -> None:
    data = bytearray(packed(("a.png", b"x" * 5000)))
    directory = data.index(b"PK\x01\x02")
    struct.pack_into("<L", data, directory + 24, 10)  # ten bytes, it says
    with pytest.raises(ImageRefused):
        opened(bytes(data)).read("a.png")


def test_a_member_over_the_limit_of_an_image_is_not_unpacked() -> None:
    images = opened(packed(("a.png", bytes(100_001)), ("b.png", bytes(100_000))))
    with pytest.raises(ImageRefused) as caught:
        images.read("a.png")
    assert caught.value.code == "oversized_image"
    assert images.read("b.png") == bytes(100_000)


def test_a_damaged_member_is_undecodable_and_the_others_are_read() -> None:
    data = packed(("a.png", b"first image"), ("b.png", b"second image"), method=zipfile.ZIP_STORED)
    images = opened(replaced(data, b"first image", b"worst image"))
    with pytest.raises(ImageRefused) as caught:
        images.read("a.png")
    assert caught.value.code == "undecodable_image"
    assert images.read("b.png") == b"second image"


def test_what_is_no_zip_is_refused() -> None:
    assert refusal(b"PK\x03\x04 and nothing else") == ("invalid_archive", "not_a_zip")


def test_no_name_is_repeated_in_a_refusal() -> None:
    with pytest.raises(Problem) as caught:
        opened(replaced(packed(("xxJaneDoe", b"1")), b"xxJaneDoe", b"../aneDoe"))
    assert "aneDoe" not in str(caught.value) + str(caught.value.errors)


def test_archives_are_known_by_their_start() -> None:
    assert is_zip(packed(("a", b"b")))
    assert is_zip(packed())
    assert not is_zip(b"\x89PNG")


@given(st.data())
def test_no_damage_gets_past_without_an_answer(data: Any) -> None:
    archive = bytearray(packed(("a.png", b"first image"), ("b.png", bytes(1000))))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    try:
        images = opened(bytes(archive))
    except Problem:
        return
    for name in ("a.png", "b.png"):
        if name in images:
            with suppress(ImageRefused):
                assert len(images.read(name)) <= 1000
