from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from app.datasets.images import FORMATS, ImageLimits, ImageRefused, check_image
from tests.app.datasets.images import declaring, deep, encoded

LIMITS = ImageLimits(max_bytes=1 << 20, max_pixels=1_000_000)


def code_of(data: bytes, limits: ImageLimits = LIMITS) -> str | None:
    try:
        check_image(data, limits)
    except ImageRefused as refusal:
        return refusal.code.value
    return None


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_the_four_formats_are_good(format_: str, channels: int) -> None:
    assert code_of(encoded(format_=format_, channels=channels)) is None


@pytest.mark.parametrize("format_", ["GIF", "TIFF", "PPM", "ICO"])
def test_other_formats_are_not_read(format_: str) -> None:
    assert code_of(encoded(format_=format_, size=16)) == "undecodable_image"


@pytest.mark.parametrize("format_", FORMATS)
def test_an_image_cut_off_anywhere_is_undecodable(format_: str) -> None:
    data = encoded(format_=format_)
    assert {code_of(data[:length]) for length in range(len(data))} == {"undecodable_image"}


def test_a_damaged_png_is_undecodable() -> None:
    data = bytearray(encoded())
    data[-20] ^= 1  # in the checksum of the pixels
    assert code_of(bytes(data)) == "undecodable_image"


@pytest.mark.parametrize("size", [(1001, 1000), (10_000, 10_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    assert code_of(declaring(*size)) == "oversized_image"


def test_pillows_own_limit_holds_when_ours_is_wider() -> None:
    assert code_of(declaring(20_000, 20_000), ImageLimits(1 << 20, 10**12)) == "oversized_image"


def test_both_limits_are_inclusive() -> None:
    data = encoded(size=10)
    assert code_of(data, ImageLimits(len(data), 100)) is None
    assert code_of(data, ImageLimits(len(data) - 1, 100)) == "oversized_image"
    assert code_of(data, ImageLimits(len(data), 99)) == "oversized_image"


def test_deep_pixels_are_refused_since_conversion_would_clip_them() -> None:
    assert code_of(deep()) == "unsupported_pixels"
    with Image.open(io.BytesIO(deep())) as image:  # the reason: 40,000 of 65,535 becomes white
        assert np.asarray(image.convert("L")).min() == 255


@given(st.binary(max_size=200), st.sampled_from([b"", *(encoded(format_=name)[:20] for name in FORMATS)]))
def test_no_bytes_get_past_without_an_answer(data: bytes, start: bytes) -> None:
    assert code_of(start + data) in {"undecodable_image", "oversized_image", "unsupported_pixels"}
