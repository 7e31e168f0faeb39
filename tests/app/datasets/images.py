"""Small images, good and bad."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encoded(seed: int = 0, format_: str = "PNG", size: int = 8, channels: int = 1) -> bytes:
    """A square of noise; another seed gives other bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, channels), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, format_)
    return file.getvalue()


def declaring(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has this size: an image bomb's head."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def deep() -> bytes:
    """A gray PNG of 16 bits."""
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(file, "PNG")
    return file.getvalue()
