from __future__ import annotations

from collections.abc import Sequence


def json_pointer(segments: Sequence[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in segments)
