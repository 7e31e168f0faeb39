"""Documentation of failures in the OpenAPI document."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from app.kit.problems import (
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MALFORMED_BODY,
    PAYLOAD_TOO_LARGE,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemType,
)

BODY_PROBLEMS = (MALFORMED_BODY, PAYLOAD_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE)
"""What every route that reads a body may answer with."""

_PUBLIC = (INVALID_REQUEST, INTERNAL_ERROR)  # 422 also keeps FastAPI from documenting an answer that is never given
_ALWAYS = (*_PUBLIC, UNAUTHENTICATED, FORBIDDEN, UNAVAILABLE)

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code", "errors", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
        "request_id": {"type": "string"},
    },
}


def problem_responses(*types: ProblemType, public: bool = False) -> dict[int | str, dict[str, Any]]:
    """For a route's ``responses``: ``types`` and, unless ``public``, those that every route may answer with."""
    by_status: defaultdict[int, list[ProblemType]] = defaultdict(list)
    for type_ in dict.fromkeys((*types, *(_PUBLIC if public else _ALWAYS))):
        by_status[type_.status].append(type_)
    return {
        status: {
            "description": " / ".join(f"`{type_.code}`: {type_.title}" for type_ in found),
            "content": {"application/problem+json": {"schema": PROBLEM_SCHEMA}},
        }
        for status, found in sorted(by_status.items())
    }
