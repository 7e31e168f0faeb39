"""Whether bytes are an image that training can read, found out without trusting them.

The size a file declares is looked at before anything is decoded; then it is decoded once, completely, so that a
truncated file is found here and not by a worker months later.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from app.datasets.report import ManifestErrorCode
from app.settings import Settings

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
# More than 8 bits a channel: Pillow clips such pixels when it converts them to 8 bits, which would silently train on
# nearly white images.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
# Decoding alone is content with a PNG that is cut off within its last bytes.
_PNG_END = b"\x00\x00\x00\x00IEND\xae\x42\x60\x82"

# Pillow only warns about a declared size between its own limit and twice that; here a doubt is a no. Set once, at
# import: entering `catch_warnings` per image is not safe with threads.
warnings.simplefilter("error", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class ImageLimits:
    """Of one image: encoded bytes, decoded pixels."""

    max_bytes: int
    max_pixels: int

    @classmethod
    def of(cls, settings: Settings) -> ImageLimits:
        return cls(settings.max_image_bytes, settings.max_image_pixels)


class ImageRefused(Exception):
    """Bytes that are no image for training."""

    def __init__(self, code: ManifestErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def check_image(data: bytes, limits: ImageLimits) -> None:
    """Decodes ``data`` once.

    Raises:
        ImageRefused: ``oversized_image`` over a limit (Pillow's own limit, about 89 million pixels, holds too);
            ``unsupported_pixels`` for more than 8 bits a channel; ``undecodable_image`` for everything else that is
            not a complete PNG, JPEG, WebP or BMP.
    """
    if len(data) > limits.max_bytes:
        raise ImageRefused(
            ManifestErrorCode.OVERSIZED_IMAGE, f"An image file may have at most {limits.max_bytes} bytes."
        )
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_declared(image, limits)
            image.load()
            complete = image.format != "PNG" or _PNG_END in data
    except ImageRefused:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ImageRefused(ManifestErrorCode.OVERSIZED_IMAGE, "The image declares too many pixels.") from error
    except Exception as error:  # decoders fail on hostile bytes with nearly every built-in exception
        raise ImageRefused(
            ManifestErrorCode.UNDECODABLE_IMAGE, "The file is not a complete PNG, JPEG, WebP or BMP image."
        ) from error
    if not complete:
        raise ImageRefused(ManifestErrorCode.UNDECODABLE_IMAGE, "The PNG file ends before its last chunk.")


def _check_declared(image: Image.Image, limits: ImageLimits) -> None:
    if image.width * image.height > limits.max_pixels:
        raise ImageRefused(ManifestErrorCode.OVERSIZED_IMAGE, f"An image may have at most {limits.max_pixels} pixels.")
    if image.mode in _DEEP_MODES:
        raise ImageRefused(
            ManifestErrorCode.UNSUPPORTED_PIXELS, "Only 8 bits a channel are read; convert the image first."
        )
