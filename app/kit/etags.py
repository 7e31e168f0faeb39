"""Conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

from app.kit.problems import PRECONDITION_FAILED, Problem


def require_match(if_match: str | None, etag: str) -> None:
    """Check an ``If-Match`` header against the current strong ``etag``.

    Raises:
        Problem: ``precondition_failed`` when the header is there and no member matches.
    """
    if if_match is None:
        return
    wanted = [member.strip() for member in if_match.split(",")]
    if wanted != ["*"] and etag not in wanted:
        raise Problem(PRECONDITION_FAILED, "If-Match does not name the current etag.", headers={"ETag": etag})
